"""Evaluating robustness: evaluate() makes Evidence, verify() checks what a card claims."""
