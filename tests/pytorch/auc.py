"""The area under the ROC curve of 200 scores of the formula, by scikit-learn, for the test of `predict`.

Run: `pip install scikit-learn numpy`, then `python auc.py`.
"""

from sklearn.metrics import roc_auc_score

import formula

scores = formula.uniform((200,), s=1, std=1.0)
positive = formula.unit((200,), s=2) < formula.unit((200,), s=1)
print(roc_auc_score(positive, scores))
