"""Parts that are fitted in closed form, without gradients: factors, partners of items, and what comes next."""
