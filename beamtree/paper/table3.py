"""Table 3: eight systems on Amazon Books."""

TITLE = "Table 3: Amazon Books, k = 400, %"
PREPARE = "beamtree prepare ratings_Books.csv --format amazon-ratings --out prepared/books"
