"""Modules: what they own, its names in graphs, and where its content lives."""

import copy
import pickle

import aicf
import numpy as np
import pytest
from aicf import nn


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, width), nn.Tanh())
        self.head = nn.Linear(width, 1)
        self.scale = nn.Parameter([2.0])
        self.register_buffer("seen", np.int64(0))

    def forward(self, x):
        if self.training:
            self.seen = self.seen + 1
        return self.head(self.body(x)) * self.scale


KEYS = ["scale", "seen", "body.0.weight", "body.0.bias", "head.weight", "head.bias"]
X, T = np.linspace(-1, 1, 15, dtype="f4").reshape(5, 3), np.ones((5, 1), "f4")


def train_step(model, rows=5, optimizer=None, **options):
    g = aicf.Graph("train")
    x, t = g.input("x", (rows, 3)), g.input("t", (rows, 1))
    loss = aicf.mse_loss(model(x), t)
    g.minimize(loss, optimizer or aicf.optim.SGD(lr=0.1))
    g.output("loss", loss)
    return g.compile("cpu", **options)


def eval_step(model, rows=5, **options):
    g = aicf.Graph("eval")
    g.output("y", model(g.input("x", (rows, 3))))
    return g.compile("cpu", **options)


def test_parts_are_registered_in_order():
    model = Net()
    assert list(model.state_dict()) == KEYS
    assert [name for name, _ in model.named_parameters()] == [k for k in KEYS if k != "seen"]
    assert [name for name, _ in model.named_buffers()] == ["seen"]
    assert [name for name, _ in model.named_modules()] == ["", "body", "body.0", "body.1", "head"]
    assert list(model.children()) == [model.body, model.head]
    assert [p.shape for p in model.head.parameters()] == [(1, 4), (1,)]
    assert [n for n, _ in model.named_parameters(prefix="m", recurse=False)] == ["m.scale"]
    assert repr(model).splitlines()[:2] == ["Net(", "  (body): Sequential("]


def test_graphs_name_params_by_their_paths():
    model = Net()
    g = aicf.Graph()
    x = g.input("x", (5, 3))
    y = model(x)
    assert list(g.params) == [k for k in KEYS if k != "seen"]
    assert y.shape == (5, 1) and " in head" in str(g)
    before = str(g).count("param")
    model(x)
    model.body(x)  # the same Values: a part keeps its path
    assert str(g).count("param") == before
    step = g.compile("cpu")
    assert {"body.0", "head"} < {row.name for row in step.summary().rows}


def test_a_part_alone_keeps_its_names():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    g = aicf.Graph()
    x = g.input("x", (5, 3))
    model[1:](x)
    assert list(g.params) == ["1.weight", "1.bias", "2.weight", "2.bias"]
    model(x)
    assert len(g.params) == 6 and "0.weight" in g.params


def test_contents_live_in_the_newest_step():
    model = Net()
    start = model.state_dict()
    step = train_step(model)
    np.testing.assert_equal(model.state_dict(), start)
    np.testing.assert_equal(step.params["head.weight"].numpy(), start["head.weight"])
    for _ in range(3):
        step(x=X, t=T)
    after = model.state_dict()
    assert after["seen"] == 3 and (after["head.weight"] != start["head.weight"]).all()
    np.testing.assert_equal(after["head.weight"], step.params["head.weight"].numpy())
    model.eval()
    other = eval_step(model, rows=2)
    first = other(x=X[:2])["y"].numpy()
    step(x=X, t=T)
    assert (other(x=X[:2])["y"].numpy() != first).all()  # one storage
    assert model.state_dict()["seen"] == 4
    model.load_state_dict(start)
    np.testing.assert_equal(step.params["head.weight"].numpy(), start["head.weight"])
    assert step.state["seen"].item() == 0


def test_a_step_of_another_size_trains_the_same_weights():
    """Against one step alone: what is shared moves both."""
    losses = []
    for rows in ((5, 5, 5), (5, 3, 5)):
        nn.seed(7)
        model = Net()
        steps = {n: train_step(model, n) for n in sorted(set(rows))}
        losses.append([float(steps[n](x=X[:n], t=T[:n])["loss"]) for n in rows])
        whole = train_step(model)
        losses[-1].append(float(whole(x=X, t=T)["loss"]))
    assert losses[0][0] == losses[1][0] and losses[0][2:] != losses[1][2:]
    assert losses[1][0] > losses[1][2] > losses[1][3]


def test_optimizers_are_shared_only_where_share_says_so():
    model = Net()
    first = train_step(model, optimizer=aicf.optim.Adam(lr=0.1))
    first(x=X, t=T)
    second = train_step(model, optimizer=aicf.optim.Adam(lr=0.2))
    assert (first.state["opt.step"].item(), second.state["opt.step"].item()) == (1, 0)
    assert second.state["opt.lr"].item() == np.float32(0.2)
    third = train_step(model, optimizer=aicf.optim.Adam(lr=0.1), share=first)
    assert third.state["opt.step"].item() == 1
    np.testing.assert_equal(third.params["scale"].numpy(), second.params["scale"].numpy())


def test_models_that_were_trained_apart_meet_in_one_graph():
    """Under names of their own there, though both had the same before."""
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    kept = []
    for model in (first, second):
        g = aicf.Graph()
        g.output("y", model(g.input("x", (5, 3))))
        kept.append(g.compile("cpu"))
    both = nn.Sequential(first, second)
    g = aicf.Graph()
    g.output("y", both(g.input("x", (5, 3))))
    step = g.compile("cpu")
    assert list(step.params) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    (a, b), (c, d) = ([p.numpy() for p in model.parameters()] for model in (first, second))
    np.testing.assert_allclose(step(x=X)["y"].numpy(), (X @ a.T + b) @ c.T + d, atol=1e-6)
    kept[0].params["weight"] = np.zeros((3, 3), "f4")
    assert not step.params["0.weight"].numpy().any()


def by_hand():
    g = aicf.Graph()
    w, b = g.param("weight", (2, 3)), g.param("bias", (2,))
    g.output("y", aicf.linear(g.input("x", (5, 3)), w, b))
    return g.compile("cpu", seed=5)


def test_contents_that_share_would_replace_are_refused():
    """A module with numbers of its own meets a step's under their names; equal ones may."""
    hand, model = by_hand(), nn.Linear(3, 2)
    mine = model.state_dict()
    g = aicf.Graph()
    g.output("y", model(g.input("x", (5, 3))))
    need = r'"weight" is a Parameter of a module .* need .*load_state_dict\(.*or a name='
    with pytest.raises(aicf.GraphError, match=need):
        g.compile("cpu", share=hand)
    np.testing.assert_equal(model.state_dict(), mine)
    model.load_state_dict(hand.state_dict(), strict=False)
    step = g.compile("cpu", share=hand)
    assert step.shared == ("weight", "bias")
    hand.params["bias"] = np.ones(2, "f4")
    assert (model.state_dict()["bias"] == 1).all()


def test_params_say_what_a_module_and_share_both_have():
    hand, model = by_hand(), nn.Linear(3, 2)
    given = {"weight": np.ones((2, 3), "f4"), "bias": np.zeros(2, "f4")}
    g = aicf.Graph()
    g.output("y", model(g.input("x", (5, 3))))
    g.compile("cpu", share=hand, params=given)
    np.testing.assert_equal(model.state_dict(), given)
    np.testing.assert_equal(hand.state_dict(), given)


def test_compile_params_replace_contents():
    model = nn.Linear(3, 2)
    g = aicf.Graph()
    g.output("y", model(g.input("x", (5, 3))))
    step = g.compile("cpu", params={"bias": np.ones(2, "f4")})
    assert (step.params["bias"].numpy() == 1).all() and (model.state_dict()["bias"] == 1).all()


def test_two_models_with_equal_names():
    g = aicf.Graph()
    x = g.input("x", (5, 3))
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    y = first(x)
    before = str(g)
    with pytest.raises(aicf.GraphError, match='"weight" is in graph .* already.*name="second"'):
        second(y)
    assert str(g) == before
    second.name = "second"
    second(y)
    third = nn.Linear(3, 3, name="third")
    third(y)
    names = ["weight", "bias", "second.weight", "second.bias", "third.weight", "third.bias"]
    assert list(g.params) == names
    assert list(third.state_dict()) == ["weight", "bias"]


def test_frozen_parameters_stay():
    model = Net()
    model.body.requires_grad_(False)
    start = model.state_dict()
    step = train_step(model, optimizer=aicf.optim.AdamW(lr=0.1))
    assert "body.0.weight" in step.state and "opt.m.body.0.weight" not in step.state
    step(x=X, t=T)
    after = model.state_dict()
    np.testing.assert_equal(after["body.0.weight"], start["body.0.weight"])
    assert (after["head.weight"] != start["head.weight"]).all()
    model.requires_grad_(True)
    again = train_step(model)
    again(x=X, t=T)
    assert (model.state_dict()["body.0.weight"] != start["body.0.weight"]).any()
    np.testing.assert_equal(step.state["body.0.weight"].numpy(), again.params["body.0.weight"])


def test_groups_of_frozen_parameters_are_no_misspelling():
    model = Net()
    optimizers = {"body.*": aicf.optim.Adam(lr=0.1), "*": aicf.optim.SGD(lr=0.1)}
    model.body.requires_grad_(False)
    step = train_step(model, optimizer=optimizers)
    assert "opt.1.lr" in step.state and "opt.0.lr" not in step.state
    model.requires_grad_(True)
    assert "opt.0.lr" in train_step(model, optimizer=optimizers).state
    with pytest.raises(aicf.GraphError, match=r"'bdy\.\*' matches none"):
        train_step(model, optimizer={"bdy.*": None, "*": aicf.optim.SGD(lr=0.1)})


def test_shared_parameters_are_one_value():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    assert [n for n, _ in model.named_parameters()] == ["0.weight"]
    assert list(model.state_dict()) == ["0.weight", "1.weight"]
    g = aicf.Graph()
    model(g.input("x", (5, 3)))
    assert list(g.params) == ["0.weight"]


def test_a_buffer_moves_on_with_each_call():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", np.float32(1))

        def forward(self, x):
            self.n = self.n * 2
            return x * self.n

    model = Counter()
    g = aicf.Graph()
    x = g.input("x", (2,))
    g.output("y", model(model(x)))
    text = str(g)  # looking at it settles nothing
    assert str(g) == text
    g.output("z", model(x))
    step = g.compile("cpu")
    assert step(x=np.ones(2, "f4"))["y"].numpy().tolist() == [8, 8]
    assert model.state_dict()["n"] == 8
    assert step(x=np.ones(2, "f4"))["z"].numpy().tolist() == [64, 64]
    with pytest.raises(aicf.GraphError, match="already assigned"):
        model(x)


def test_batch_norm_of_two_batches_in_a_graph():
    """The function too: running values move once for each call, as PyTorch's."""
    torch = pytest.importorskip("torch")
    g = aicf.Graph()
    a, b = g.input("a", (6, 3)), g.input("b", (4, 3))
    mean, var = g.state("mean", (3,)), g.state("var", (3,), init=aicf.init.ones())
    for i, x in enumerate((a, b)):
        g.output(f"y{i}", aicf.batch_norm(x, mean, var))
    step = g.compile("cpu")
    rng = np.random.default_rng(0)
    batches = [rng.standard_normal(s, np.float32) for s in ((6, 3), (4, 3))]
    step(a=batches[0], b=batches[1])
    norm = torch.nn.BatchNorm1d(3)
    for batch in batches:
        norm(torch.tensor(batch))
    np.testing.assert_allclose(step.state["mean"].numpy(), norm.running_mean.numpy(), atol=1e-6)
    np.testing.assert_allclose(step.state["var"].numpy(), norm.running_var.numpy(), atol=1e-6)


def test_a_batch_norm_that_comes_to_nothing_moves_nothing():
    """Of one example of a vmap, of a loop's body, of a call that raises later."""
    g = aicf.Graph()
    x = g.input("x", (4, 6, 3))
    norm = nn.BatchNorm1d(3)
    norm.in_graph(g)

    class Late(nn.Module):
        def forward(self, x):
            norm(x)
            raise ValueError("late")

    with pytest.raises(aicf.GraphError, match="assigns to a state, of one example"):
        aicf.vmap(norm)(x)
    with pytest.raises(aicf.GraphError, match="assigns to a state"):
        aicf.scan(lambda c, row: (norm(row), None), x[0], x)
    with pytest.raises(ValueError, match="late"):
        Late()(x[0])
    assert not g._updates and not g._moved
    y = norm(x[0])
    g.output("y", y)
    step = g.compile("cpu")
    step(x=np.ones((4, 6, 3), "f4"))
    np.testing.assert_allclose(norm.state_dict()["running_mean"], [0.1] * 3, rtol=1e-6)


def test_a_call_that_raises_leaves_the_graph():
    class Wrong(Net):
        def forward(self, x):
            super().forward(x)
            return aicf.linear(x, self.head.weight)

    g = aicf.Graph()
    x = g.input("x", (5, 3))
    before, model = str(g), Wrong()
    with pytest.raises(aicf.ShapeError):
        model(x)
    assert str(g) == before and not g.params
    Net()(x)
    assert len(g.params) == 5


def test_seeds():
    def weights(seed):
        nn.seed(seed)
        return nn.Linear(3, 4).state_dict()["weight"], nn.Linear(3, 4).state_dict()["weight"]

    (a, b), (c, d), (e, _) = weights(1), weights(1), weights(2)
    np.testing.assert_equal((a, b), (c, d))
    assert (a != b).any() and (a != e).any()
    nn.seed(1)
    own = Net(seed=5).state_dict()["head.weight"]
    np.testing.assert_equal(nn.Linear(3, 4).state_dict()["weight"], a)  # drew nothing of it
    np.testing.assert_equal(Net(seed=5).state_dict()["head.weight"], own)
    with pytest.raises(aicf.GraphError, match="seed: number is -1"):
        nn.seed(-1)


def test_copies_are_apart():
    model = Net()
    step = train_step(model)
    step(x=X, t=T)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_equal(twin.state_dict(), model.state_dict())
        assert twin.head._path() == "head"
        own = train_step(twin)
        own(x=X, t=T)
        assert (twin.state_dict()["scale"] != model.state_dict()["scale"]).all()


def test_to_host_takes_a_copy():
    model = Net()
    step = train_step(model)
    kept = model.to_host().state_dict()
    step(x=X, t=T)
    np.testing.assert_equal(model.state_dict(), kept)
    assert (step.params["scale"].numpy() != kept["scale"]).all()


def test_contents_live_on_one_device():
    """Asked of what compile asks: "auto" goes where the contents are."""
    from aicf.parameters import contents_of

    model = nn.Linear(3, 2)
    g = aicf.Graph()
    g.output("y", model(g.input("x", (5, 3))))
    assert contents_of(g, ()).device("auto") == "auto"
    g.compile("cpu")
    assert contents_of(g, ()).device("auto") == "cpu"
    with pytest.raises(
        aicf.GraphError, match='"weight" of a module lives on cpu, device is "cuda"'
    ):
        g.compile("cuda")


def test_bfloat16_parameters():
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Linear(3, 2, dtype=torch.bfloat16)
    model = nn.Linear(3, 2, dtype="bfloat16")
    assert model.weight.dtype == "bfloat16"
    model.load_state_dict(theirs.state_dict())
    weight = theirs.weight.detach().float().numpy()
    np.testing.assert_equal(model.state_dict()["weight"], weight)
    g = aicf.Graph()
    g.output("y", model(g.input("x", (5, 3), "bfloat16")))
    step = g.compile("cpu")
    np.testing.assert_equal(step.params["weight"].numpy(), weight)
    np.testing.assert_equal(model.state_dict()["weight"], weight)
    model.load_state_dict(model.state_dict())


def test_load_state_dict_names_all_that_does_not_fit():
    model = Net()
    given = model.state_dict()
    given["heads.weight"] = given.pop("head.weight")
    given["scale"] = np.zeros(2, "f4")
    given["head.bias"] = np.zeros(1)
    with pytest.raises(aicf.GraphError) as error:
        model.load_state_dict(given)
    text = str(error.value)
    assert 'missing "head.weight" (is it "heads.weight"?)' in text
    assert 'unexpected ["heads.weight"]' in text
    assert '"scale" has shape (2,), need (1,)' in text and '"head.bias" is float64' in text
    with pytest.raises(aicf.ShapeError):
        model.load_state_dict(given, strict=False)
    del given["scale"], given["head.bias"]
    start = model.state_dict()
    given["body.0.bias"] = np.ones(4, "f4")
    left = model.load_state_dict(given, strict=False)
    assert left.missing_keys == ["scale", "head.weight", "head.bias"]
    assert left.unexpected_keys == ["heads.weight"]
    np.testing.assert_equal(model.state_dict(), {**start, "body.0.bias": np.ones(4, "f4")})
    with pytest.raises(aicf.DTypeError):
        model.load_state_dict({**start, "scale": np.zeros(1)})
    with pytest.raises(aicf.GraphError, match="need a mapping"):
        model.load_state_dict([1])


def test_scan_over_a_cell():
    """A cell called in a body; its params are made before."""

    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.Linear(3, 3)

        def forward(self, x):
            last, _ = aicf.scan(lambda c, row: (aicf.tanh(self.cell(c) + row), None), x[0], x)
            return last

    g = aicf.Graph()
    model = Rows()
    loss = aicf.sum(model(g.input("x", (5, 3))))
    g.minimize(loss, aicf.optim.SGD(lr=0.1))
    g.output("loss", loss)
    before = model.state_dict()
    g.compile("cpu")(x=X)
    assert (model.state_dict()["cell.bias"] != before["cell.bias"]).all()
    alone = nn.Linear(3, 3)
    g = aicf.Graph()
    x = g.input("x", (5, 3))
    with pytest.raises(aicf.GraphError, match='makes param "weight"; need it before'):
        aicf.scan(lambda c, row: (alone(c), None), x[0], x)
    alone.in_graph(g)
    aicf.scan(lambda c, row: (alone(c), None), x[0], x)


@pytest.mark.parametrize(
    "act, kind, text",
    [
        (lambda: nn.Linear(0, 3), aicf.ShapeError, "in_features is 0"),
        (lambda: nn.Linear(3, 3, biass=True), TypeError, 'is it "bias"'),
        (lambda: nn.Linear(3, 3, dtype="floaty"), aicf.DTypeError, "dtype is 'floaty'"),
        (lambda: nn.Linear(3, "a"), aicf.ShapeError, "out_features is 'a'"),
        (lambda: nn.Linear(3, 3)(1.0), aicf.GraphError, "got no Value"),
        (lambda: nn.Module()(aicf.Graph().input("x", ())), aicf.GraphError, "no forward"),
        (lambda: nn.LeakyReLU(slope=1), TypeError, "no argument 'slope'"),
        (lambda: nn.Softmax(), TypeError, "dim"),
        (lambda: nn.Sequential(1), aicf.GraphError, "need a Module"),
        (lambda: nn.Linear(3, 3, name=1), aicf.GraphError, "name is 1"),
        (lambda: setattr(Net(), "head", 1), aicf.GraphError, "a part of the module"),
        (lambda: setattr(Net(), "forward", nn.ReLU()), aicf.GraphError, "already"),
        (lambda: Net().heed, AttributeError, 'is it "head"'),
        (lambda: nn.Parameter(np.zeros(3)).set(np.zeros(2)), aicf.ShapeError, "shape"),
        (lambda: nn.Parameter([0.0]).set(np.zeros(1)), aicf.DTypeError, "float64"),
        (lambda: nn.ModuleList([nn.ReLU()])[1], IndexError, "index 1 of 1"),
    ],
)
def test_errors(act, kind, text):
    with pytest.raises(kind, match=text):
        act()


def test_containers():
    row = nn.ModuleList([nn.Linear(3, 3), nn.ReLU()])
    row.append(nn.Linear(3, 1)).extend([nn.Tanh()])
    assert len(row) == 4 and isinstance(row[-1], nn.Tanh) and len(row[1:3]) == 2
    row[1] = nn.Tanh()
    assert isinstance(row[1], nn.Tanh) and [type(m) for m in row][1] is nn.Tanh
    table = nn.ModuleDict({"a": nn.Linear(3, 3)})
    table["b"] = nn.Linear(3, 2)
    assert list(table) == ["a", "b"] and "a" in table and list(table.state_dict())[0] == "a.weight"
    named = nn.Sequential({"first": nn.Linear(3, 2), "then": nn.ReLU()})
    assert list(named.state_dict()) == ["first.weight", "first.bias"] and named.first is named[0]

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.several = nn.ParameterList([[1.0], [2.0]])
            self.table = nn.ParameterDict({"k": [3.0]})

        def forward(self, x):
            return x * self.several[0] + self.several[1] * self.table["k"]

    model = Own()
    assert list(model.state_dict()) == ["several.0", "several.1", "table.k"]
    g = aicf.Graph()
    g.output("y", model(g.input("x", (2,))))
    assert g.compile("cpu")(x=np.ones(2, "f4"))["y"].numpy().tolist() == [7, 7]


# ---- params by patterns


def test_params_by_patterns():
    g = aicf.Graph()
    Net()(g.input("x", (5, 3)))
    assert [p.name for p in g.params("body.*")] == ["body.0.weight", "body.0.bias"]
    assert [p.name for p in g.params(without="*.bias")] == ["scale", "body.0.weight", "head.weight"]
    assert g.params["scale"].shape == (1,) and len(g.params) == 5 and "scale" in g.params
    with pytest.raises(aicf.GraphError, match='matches none.*is it "scale"'):
        g.params("scala")
    with pytest.raises(aicf.GraphError, match="there is no 'a'"):
        g.params["a"]


def test_groups_have_their_own_optimizers():
    """Each against a hand-made pair of updates."""
    sgd = aicf.optim.SGD
    results = []
    for by_groups in (True, False):
        model = Net(seed=1)
        g = aicf.Graph()
        x, t = g.input("x", (5, 3)), g.input("t", (5, 1))
        loss = aicf.mse_loss(model(x), t)
        if by_groups:
            groups = {"scale": None, "*.bias": sgd(lr=0.5), "*": sgd(lr=0.1, weight_decay=0.3)}
            g.minimize(loss, groups, clip_norm=0.5)
        else:
            grads = g.backward(loss, g.params(without="scale"))
            grads = aicf.optim.clip_grad_norm(grads, 0.5)
            biases = g.params("*.bias")
            g.update({p: grads[p] for p in biases}, sgd(lr=0.5), name="a")
            rest = {p: grad for p, grad in grads.items() if p not in biases}
            g.update(rest, sgd(lr=0.1, weight_decay=0.3), name="b")
        step = g.compile("cpu")
        step.run(x=X, t=T)
        results.append(model.state_dict())
        if by_groups:
            assert {"opt.1.lr", "opt.2.lr"} <= set(step.state)
    np.testing.assert_equal(*results)
    assert results[0]["scale"] == 2


def test_minimize_takes_what_modules_own():
    model = Net()
    model.body.requires_grad_(False)
    for params in (model.parameters(), model, [model.head, model.scale], "[hs]*"):
        g = aicf.Graph()
        loss = aicf.sum(model(g.input("x", (5, 3))))
        g.minimize(loss, aicf.optim.Adam(lr=0.1), params=params)
        moments = {n.partition(".m.")[2] for n in g.compile("cpu").state if ".m." in n}
        assert moments == {"scale", "head.weight", "head.bias"}, params
    with pytest.raises(aicf.GraphError, match="which this graph has none of"):
        g.minimize(loss, aicf.optim.SGD(lr=0.1), params=nn.Linear(3, 3))
    with pytest.raises(aicf.GraphError, match="params holds 1"):
        g.minimize(loss, aicf.optim.SGD(lr=0.1), params=[1])


def test_groups_name_what_they_miss():
    g = aicf.Graph()
    loss = aicf.sum(Net()(g.input("x", (5, 3))))
    with pytest.raises(aicf.GraphError, match='"scale" matches none of'):
        g.minimize(loss, {"*.*": aicf.optim.SGD(lr=0.1)})
    with pytest.raises(aicf.GraphError, match="'haed.*' matches none"):
        g.minimize(loss, {"haed.*": None, "*": aicf.optim.SGD(lr=0.1)})
    with pytest.raises(aicf.GraphError, match="optimizer is 1"):
        g.minimize(loss, {"*": 1})


def test_parts_outlive_what_they_were_part_of():
    """Their names come from the module that has them now."""
    kept = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Sigmoid())[:3]
    first, second = nn.Module(), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    first.a, first.b = second[0], second[1]
    del second[0].weight, second
    first.a.weight = nn.Parameter(np.eye(3, dtype="f4"))
    other = nn.Sequential(first.a, first.b)
    del first.a, first.b
    for model in (kept, other):
        g = aicf.Graph()
        g.output("y", model(g.input("x", (5, 3))))
        assert list(g.params) == list(model.state_dict())


@pytest.mark.parametrize("compiled", [False, True])
def test_modules_in_files(compiled, tmp_path):
    """Before a step has their contents and after; the names are PyTorch's, or those of graphs."""
    model, half = Net(), nn.Linear(3, 2, dtype="bfloat16", name="half")
    start = model.state_dict()
    step = train_step(model) if compiled else None
    aicf.save(tmp_path / "f", model, half, *([step.params] if compiled else []))
    assert set(aicf.Checkpoint(tmp_path / "f")) == {*start, "half.weight", "half.bias"}
    before = half.state_dict()
    half.load_state_dict({key: array * 0 for key, array in before.items()})
    for held in model.parameters():
        held.set(np.zeros(held.shape, "f4"))
    assert len(aicf.load(tmp_path / "f", half, model).names) == len(start) + 2
    np.testing.assert_equal(model.state_dict(), start)
    np.testing.assert_equal(half.state_dict(), before)
    if compiled:
        np.testing.assert_equal(step.params["scale"].numpy(), start["scale"])
    other = Net()
    aicf.load(tmp_path / "f", other, skip="half.*")
    np.testing.assert_equal(other.state_dict(), start)
    with pytest.raises(aicf.GraphError, match="two parts have .* storage of their own; need names"):
        aicf.save(tmp_path / "g", model, other)
    aicf.save(tmp_path / "g", {"a": model, "b": other})
    wrong = Net()
    wrong.scale = nn.Parameter(np.ones(9, "f4"))
    before = wrong.state_dict()
    with pytest.raises(aicf.ShapeError, match=r'"scale" has shape'):
        aicf.load(tmp_path / "f", wrong, skip="half.*")
    np.testing.assert_equal(wrong.state_dict(), before)
