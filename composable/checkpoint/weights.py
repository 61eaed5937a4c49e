def load_weights(model, path, *, strict=True, ignore=()):
    raise NotImplementedError
