"""A loss, a defence and an optimizer for robustzoo: see methods.py."""
