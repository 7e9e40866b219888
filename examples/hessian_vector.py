"""Newton's method on a logistic regression: Hessian-vector products inside conjugate gradients."""

import aicf
import numpy as np

ROWS, SIZE = 200, 8


def products():
    """The loss, its gradient, and its Hessian times `v`, without the matrix."""
    g = aicf.Graph("products")
    x, t = g.input("x", (ROWS, SIZE)), g.input("t", (ROWS,))
    w, v = g.input("w", (SIZE,)), g.input("v", (SIZE,))
    loss = aicf.binary_cross_entropy_with_logits(x @ w, t) + 0.005 * aicf.sum(w * w)
    slope = aicf.grad(loss, w)
    g.output("loss", loss)
    g.output("slope", slope)
    g.output("product", aicf.grad(aicf.sum(slope * v), w))
    return g.compile()


def newton_step(step, x, t, w, rounds=SIZE):
    out = step(x=x, t=t, w=w, v=np.zeros_like(w))
    loss, move = float(out["loss"]), np.zeros_like(w)
    along = rest = -out["slope"].numpy()
    for _ in range(rounds):
        bent = step(x=x, t=t, w=w, v=along)["product"].numpy()
        size = rest @ rest / (along @ bent)
        move, after = move + size * along, rest - size * bent
        along, rest = after + (after @ after) / (rest @ rest) * along, after
    return w + move, loss


if __name__ == "__main__":
    rng, step, w = np.random.default_rng(0), products(), np.zeros(SIZE, np.float32)
    x = rng.standard_normal((ROWS, SIZE)).astype(np.float32)
    t = (x @ np.arange(SIZE) + rng.standard_normal(ROWS) > 0).astype(np.float32)
    for _ in range(6):
        w, loss = newton_step(step, x, t, w)
        print(loss)
