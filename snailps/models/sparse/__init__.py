"""Models of sparse examples: linear models, and what factorization machines and networks share.

    text -> batch -> worker: rows with state -> PULL -> kernel threads -> differences -> PUSH
    tables -> evaluate, export -> .npz -> predict

``settings.py``  what all of them are told     ``batch.py``    text -> numbered examples
``worker.py``    their base class              ``metrics.py``  scores and labels -> figures
``evaluate.py``  a hold-out file, at the master     ``export.py``  model files
``shares.py``    of differences, where several workers push them
``linear.py``    logistic, linear, multinomial      ``predict.py`` a model file -> predictions
``fm.py``        factorization machines
``net.py``       a network, its first layer sparse  ``first_layer.py``, ``dense.py``  its layers
"""
