"""Models of sparse examples: linear models, and what factorization machines and networks share.

    text -> batch -> worker: rows with state -> PULL -> kernel threads -> differences -> PUSH
    tables -> evaluate, export -> .npz -> predict

``settings.py``  what all of them are told     ``batch.py``    text -> numbered examples
``worker.py``    their base class              ``metrics.py``  scores and labels -> figures
``evaluate.py``  a hold-out file, at the master     ``export.py``  model files
``linear.py``    logistic, linear, multinomial      ``predict.py`` a model file -> predictions
"""
