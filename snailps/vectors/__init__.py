"""Trained models: their files, queries, predictions and evaluation.

    rows -> saving -> .vec, .bin, .npz -> files -> query.Vectors -> neighbours, analogies; evaluate
    .bin of a classifier -> LabelModel -> labels of lines; evaluate_labels -> scores

Must not know processes, sockets or training.
"""
