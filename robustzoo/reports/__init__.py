"""Showing Evidence: text, figures, one HTML file, and two models side by side."""
