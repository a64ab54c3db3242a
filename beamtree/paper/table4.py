"""Table 4: eight systems on UserBehavior."""

TITLE = "Table 4: UserBehavior, k = 400, %"
