"""Judging claims: is what a card says true of these weights, and how much of it was tested."""
