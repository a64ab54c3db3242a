"""Table 4: eight systems on UserBehavior."""

TITLE = "Table 4: UserBehavior, k = 400, %"
PREPARE = "beamtree prepare UserBehavior.csv --format user-behavior --out prepared/userbehavior"
