"""What a model does and why: what the beam loses, explanations, the page, and the choice of a beam."""
