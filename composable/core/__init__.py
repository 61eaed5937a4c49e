"""Values and protocols of a run: events, time, keys, batches, state, algorithms, callbacks."""
