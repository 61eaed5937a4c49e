"""How the outputs, gradients and steps of a run are computed, by one process or several."""
