"""From a log to recommendations in Python: ids in, ids out.

python examples/recommend.py
"""

import tempfile
from pathlib import Path

import beamtree as bt
from beamtree.evaluate import leaving_out, measure
from beamtree.ingest.simulate import simulate
from beamtree.research.baselines import popularity

with tempfile.TemporaryDirectory() as folder:
    log = Path(folder) / "market.parquet"
    simulate(log, users=1500, items=500, events=30_000)  # or a log of your own

    shop = bt.Recommender(beam_size=30, steps=60, seed=0)  # without arguments: right for most logs
    print(shop.fit(log))

    user = shop.users[0]
    in_stock = shop.ids.names[:100]
    best = shop.recommend(users=[user], m=5, allowed=in_stock, exclude_seen=True)
    print(f"recommended to {user}:", ", ".join(best["item"]))

    print(shop.evaluate(m=(10, 50)))
    plain = popularity(shop.data.train.events, shop.data.num_items)
    print("popularity alone:")
    print(measure(leaving_out(plain.retrieve, 50), shop.data.test, m=(10, 50)))
