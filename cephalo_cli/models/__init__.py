"""The models as torch modules: every family is a list of units (embedding, blocks, head with the loss).

The units of all families are called alike; ``batch`` is the microbatch (`batch`), the same for every unit:

* embedding ``(batch[, key]) -> x_BTD``
* block ``(x_BTD, batch[, key]) -> x_BTD``
* head ``(x_BTD, batch[, tied_matrix_VD]) -> loss``, the *sum* of the losses; targets of -100 count nothing

``key`` draws the masks of dropout; without it nothing is dropped. A head's ``logits(x_BTD[, tied_matrix_VD])`` are what
its loss is taken of. `build_unit` makes a unit, without weights on the meta device; `initialise_` draws its weights
from the seed and the unit's index alone, so that every plan starts from the same model.

Shape letters in this package: B samples, T tokens, D hidden size, H query heads, K key and value heads, C width of a
head (of images: colour channels), V vocabulary, X several of these side by side.
"""

from cephalo_cli.models.batch import IGNORED_TARGET, ImageBatch, TextBatch
from cephalo_cli.models.build import build_unit, initialise_, starting_unit
from cephalo_cli.models.dropout import DropoutKey

__all__ = ["IGNORED_TARGET", "DropoutKey", "ImageBatch", "TextBatch", "build_unit", "initialise_", "starting_unit"]
