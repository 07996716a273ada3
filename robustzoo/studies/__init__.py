"""The paper's experiments: the two-moons study and the sweep over lambda."""
