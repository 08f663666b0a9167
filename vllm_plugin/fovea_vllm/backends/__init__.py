"""vLLM's attention backends with calibrated rows; each lets its parent compute the whole batch first."""
