"""Laws that hold for every case that Hypothesis can think of."""
