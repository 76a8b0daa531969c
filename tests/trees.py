"""Trees of turns for the tests: from a list of nodes to a step table, random ones, and plain recursions over them."""

import math
import random

import torch

from rtmc import StepTable


def tree_rows(nodes, group=0):
    """Rows of a tree. A node is a mapping with `node`, `parent` (None = child of the prompt), on leaves `outcome`, and
    scores. Each leaf is a rollout; an inner node belongs to the first leaf below it."""
    place = {node["node"]: k for k, node in enumerate(nodes)}
    inner = {node["parent"] for node in nodes}
    rollout, depth = {}, {}
    for node in nodes:
        name = node["node"]
        path = [name]
        while (above := nodes[place[path[-1]]]["parent"]) is not None:
            path.append(above)
        depth[name] = len(path) - 1
        if name not in inner:
            for step in path:
                if rollout.setdefault(step, name) != name:
                    break
    rows = []
    for node in nodes:
        more = {key: value for key, value in node.items() if key not in ("node", "parent")}
        parent = -1 if node["parent"] is None else place[node["parent"]]
        name = node["node"]
        rows.append(
            {"group": group, "rollout": rollout[name], "index": depth[name], "state": name, "action": name}
            | {"parent": parent, **more}
        )
    return rows


def joined(*trees):
    """Rows of several trees in one list, parents renumbered."""
    rows = []
    for tree in trees:
        shift = len(rows)
        rows += [{**row, "parent": row["parent"] + shift if row["parent"] >= 0 else -1} for row in tree]
    return rows


def reordered(rows, order):
    """The rows in another order: row k of the result is rows[order[k]]."""
    place = {old: new for new, old in enumerate(order)}
    return [{**rows[old], "parent": place.get(rows[old]["parent"], -1)} for old in order]


def table_of(nodes, dtype=torch.float64):
    return StepTable.from_rows(tree_rows(nodes), dtype=dtype)


def random_tree(seed, unknown=0.2, size=12):
    """Nodes with awkward numbers: outcome, entropy, answer_score, pool_weight; some outcomes and scores unknown."""
    rng = random.Random(seed)
    nodes = []
    for k in range(rng.randrange(1, size)):
        nodes.append(
            {
                "node": k,
                "parent": None if k == 0 or rng.random() < 0.3 else rng.randrange(k),
                "entropy": rng.gauss(1, 1),
                "answer_score": rng.random(),
                "pool_weight": rng.choice([1.0, rng.uniform(0.3, 3)]),
            }
        )
        if rng.random() < 0.1:
            nodes[-1]["entropy"] = nodes[-1]["answer_score"] = math.nan
    inner = {node["parent"] for node in nodes}
    for node in nodes:
        if node["node"] not in inner:
            node["outcome"] = math.nan if rng.random() < unknown else rng.choice([0.0, 1.0, rng.gauss(0, 1)])
    return nodes


def children_of(nodes):
    below = {None: []}
    for node in nodes:
        below.setdefault(node["parent"], []).append(node["node"])
    return below


def leaves_below(nodes, name):
    below = children_of(nodes)
    if name not in below:
        return [name]
    return [leaf for child in below[name] for leaf in leaves_below(nodes, child)]


def is_known(nodes, name):
    by_name = {node["node"]: node for node in nodes}
    return any(not math.isnan(by_name[leaf]["outcome"]) for leaf in leaves_below(nodes, name))


def backed_up(nodes, leaf_value, weight, by_number=False):
    """Value of every known node, None being the prompt: the average of the known children by `weight(siblings)`, which
    maps their names to numbers. With `by_number` their weighted sum over their number. Dictionaries, no tensor."""
    below = children_of(nodes)
    value = {}

    def visit(name):
        if name is not None and name not in below:
            value[name] = leaf_value[name]
            return
        known = [child for child in below[name] if is_known(nodes, child)]
        for child in known:
            visit(child)
        if known:
            weights = weight(known)
            total = len(known) if by_number else math.fsum(weights[child] for child in known)
            value[name] = math.fsum(weights[child] * value[child] for child in known) / total

    visit(None)
    return value


def z(values, ddof, eps):
    """z-scores of a list, 0 where nothing differs."""
    if len(set(values)) < 2:
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - ddof))
    return [(x - mean) / (std + eps) for x in values]


def z_leaves(nodes, sets, ddof, eps=1e-6):
    """z-scored outcome of every known leaf, within each of `sets` of leaf names."""
    outcome = {node["node"]: node.get("outcome") for node in nodes}
    found = {}
    for names in sets:
        known = [name for name in names if not math.isnan(outcome[name])]
        found |= dict(zip(known, z([outcome[name] for name in known], ddof, eps), strict=True))
    return found
