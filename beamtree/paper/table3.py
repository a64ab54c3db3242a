"""Table 3: eight systems on Amazon Books."""

TITLE = "Table 3: Amazon Books, k = 400, %"
