"""The curvature of a model's loss: traces and spectra of its Hessian, the PAC-Bayes bound, two studies."""
