"""Embeddings of names: knowledge graphs (`kge`) and matrix factorisation (`mf`)."""
