"""The curvature of a model's loss: traces and spectra of its Hessian, the bound they enter, and two studies."""
