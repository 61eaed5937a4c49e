"""The immutable spine of a run: events, time, keys, state, algorithms, callbacks, the plan."""
