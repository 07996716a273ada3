"""Making Evidence: evaluate() and what it is made of."""
