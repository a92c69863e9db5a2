"""Models of sparse examples: linear models, and what factorization machines and networks share.

    text -> batch -> worker: rows with state -> PULL -> kernel threads -> differences -> PUSH
    tables -> evaluate, export -> .npz -> predict

``settings.py``  what all of them are told     ``batch.py``    text -> numbered examples
``worker.py``    their base class              ``metrics.py``  scores and labels -> figures
``kept.py``      rows of an only worker        ``shares.py``   differences of several workers
``evaluate.py``  files, seen by the master     ``export.py``   model files
``linear.py``    logistic, linear, multinomial (``linear_settings.py``)
``fm.py``        factorization machines        ``predict.py``  a model file -> predictions
``net.py``       a network, its first layer sparse (``first_layer.py``)
"""
