"""The models as torch modules: every family is a list of units (embedding, blocks, head with the loss).

The units of a family have one shape of call:

* embedding ``(tokens_BT) -> x_BTD``
* block ``(x_BTD) -> x_BTD``
* head ``(x_BTD, targets_BT[, tied_matrix_VD]) -> loss``, the *sum* of the token losses; targets of -100 count nothing

`build_unit` makes one, without weights on the meta device; `initialise_` draws its weights from the seed and the unit's
index alone, so that every plan starts from the same model.
"""

from cephalo_cli.models.build import build_unit, initialise_, starting_values
from cephalo_cli.models.dropout import DropoutKey
from cephalo_cli.models.loss import IGNORED_TARGET

__all__ = ["IGNORED_TARGET", "DropoutKey", "build_unit", "initialise_", "starting_values"]
