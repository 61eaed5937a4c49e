"""What several packages need and users do not: checks, paths, text, surgery of models."""
