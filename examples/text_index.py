"""Change the model of a small text index: what the new model finds among old vectors, before it is put into use.

python examples/text_index.py st:./old-model st:./new-model
python examples/text_index.py hf:./old-model "https://host.example/v1/embeddings?model=small"
"""

import sys
import tempfile
from itertools import product

from fixstar import Workspace
from fixstar.workspace.items import text_item

HELP = {
    "shoes": (["shoes", "boots", "sandals"], "can be returned in their box within 30 days"),
    "refund": (["a refund", "your money", "the payment"], "arrives on your card after five days"),
    "parcel": (["a parcel", "an order", "a delivery"], "can be followed with its number"),
    "gift": (["a gift card", "a voucher", "a coupon"], "is valid for two years"),
}
SHOPS = ["the shop in Paris", "the shop in Rome", "the web shop", "the outlet", "the station"]
QUESTIONS = {
    "shoes": "how do I return {}",
    "refund": "when does {} arrive on my card",
    "parcel": "where can I follow {}",
    "gift": "how long is {} valid",
}

passages = {}
wanted = {}
for topic, (things, rule) in HELP.items():
    for thing, shop in product(things, SHOPS):
        passages[f"{topic}/{thing} {shop}"] = f"{thing} from {shop} {rule}"
    for thing in things:
        question = QUESTIONS[topic].format(thing)
        wanted[question] = {name: 1.0 for name in passages if name.startswith(f"{topic}/{thing} ")}

old, new = sys.argv[1:3]
question = "how do I return boots"
with (
    tempfile.TemporaryDirectory() as folder,
    Workspace.create(f"{folder}/help", device="cpu") as space,
):
    space.add_version(old)
    space.index(text_item(name, text, {}) for name, text in passages.items())
    print(f"{len(passages)} passages indexed. v1 answers {question!r} with:")
    print("   ", space.search([question], k=1).hits[0][0].payload["text"])

    space.add_version(new)
    check = space.check("v2", relevant=wanted, progress=False)
    (cell,) = check.cells
    print(f"{check.queries} questions judge, nDCG@10: v1 {cell.self_test:.2f},", end=" ")
    print(f"v2 on v1's vectors {cell.cross_test:.2f}, all embedded again {cell.reembedded:.2f}")
    print(f"The check says: {check.outcome}. Few questions seldom prove anything")

    space.deploy("v2", force="an example")
    print("v2 answers with:", space.search([question], k=1).hits[0][0].payload["text"])
    space.rollback()
    print(f"Back to {space.deployed()}; no vector was changed")
