"""Models after training: files, queries, scores.

    rows -> files -> .vec, .bin, .npz -> query.Vectors -> neighbours, analogies; evaluate -> scores
    .bin of a classifier -> LabelModel -> labels of lines; evaluate_labels -> scores

Must not know processes, sockets or training.
"""
