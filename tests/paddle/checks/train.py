"""Small networks, trained on the device and on the CPU from the same seeds: every loss is equal, bit by bit.

Where the device has no kernel, PaddlePaddle runs the CPU's, so the arithmetic is the same.
"""
import numpy as np
import paddle
from paddle import nn

from support import TYPE, main, raw, same

STEPS = 12
DEVICES = paddle.base.core.get_custom_device_count(TYPE)


class Tokens(nn.Layer):
    """An embedding, a normalisation, attention by hand, and a head."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.norm = nn.LayerNorm(32)
        self.mix = nn.Linear(32, 96)
        self.head = nn.Linear(32, 50)

    def forward(self, tokens):
        x = self.norm(self.embed(tokens))
        q, k, v = paddle.split(self.mix(x), 3, axis=-1)
        weight = nn.functional.softmax(paddle.matmul(q, k, transpose_y=True) / 32**0.5, axis=-1)
        return self.head(x + paddle.matmul(weight, v))


def dense():
    random = np.random.default_rng(0)
    x = random.standard_normal((64, 20)).astype("float32")
    y = (x[:, :1] * 2 - x[:, 1:2]).astype("float32")
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
    return net, (x,), y, nn.MSELoss(), paddle.optimizer.SGD(0.05, parameters=net.parameters())


def image():
    random = np.random.default_rng(1)
    x = random.standard_normal((16, 1, 12, 12)).astype("float32")
    y = random.integers(0, 4, (16,)).astype("int64")
    net = nn.Sequential(nn.Conv2D(1, 8, 3), nn.BatchNorm2D(8), nn.ReLU(), nn.MaxPool2D(2), nn.Flatten(),
                        nn.Linear(200, 4))
    return net, (x,), y, nn.CrossEntropyLoss(), paddle.optimizer.Momentum(0.05, parameters=net.parameters())


def tokens():
    random = np.random.default_rng(2)
    x = random.integers(0, 50, (8, 16)).astype("int64")
    y = np.roll(x, 1, axis=1)
    net = Tokens()
    return net, (x,), y, nn.CrossEntropyLoss(), paddle.optimizer.Adam(0.01, parameters=net.parameters())


def train(make, device):
    """The losses, and the parameters at the end."""
    # On the CPU, so that the initial values do not depend on the device's generator of random numbers.
    paddle.set_device("cpu")
    paddle.seed(7)
    start = {k: v.numpy() for k, v in make()[0].state_dict().items()}
    paddle.set_device(device)
    net, inputs, target, criterion, optimizer = make()
    net.set_state_dict(start)
    inputs, target = [paddle.to_tensor(x) for x in inputs], paddle.to_tensor(target)
    losses = []
    for _ in range(STEPS):
        loss = criterion(net(*inputs), target)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(raw(loss))
    if device != "cpu":
        assert all(str(p.place) == f"Place({device})" for p in net.parameters())
    return losses, {k: v.numpy() for k, v in net.state_dict().items()}


def compare(make):
    want, end = train(make, "cpu")
    values = [np.frombuffer(x, "float32")[0] for x in want]
    assert values[-1] < 0.8 * values[0], f"the loss does not fall: {values}"
    for ordinal in range(DEVICES):
        got, weights = train(make, f"{TYPE}:{ordinal}")
        assert got == want, f"device {ordinal}: {[np.frombuffer(x, 'float32')[0] for x in got]} and {values}"
        for name, value in end.items():
            same(weights[name], value)


def check_dense_layers_with_sgd():
    compare(dense)


def check_convolutions_with_momentum():
    compare(image)


def check_tokens_with_adam():
    compare(tokens)


def check_mixed_devices_in_one_step():
    """Half of the network on the first device, half on the last; the gradient crosses between them."""
    paddle.set_device(f"{TYPE}:0")
    paddle.seed(3)
    first = nn.Linear(8, 8)
    last = DEVICES - 1
    paddle.set_device(f"{TYPE}:{last}")
    second = nn.Linear(8, 1)
    x = paddle.to_tensor(np.ones((4, 8), "float32"), place=paddle.CustomPlace(TYPE, 0))
    out = second(first(x)._copy_to(paddle.CustomPlace(TYPE, last), True))
    assert str(out.place) == f"Place({TYPE}:{last})"
    out.sum().backward()
    assert np.isfinite(second.weight.grad.numpy()).all()


if __name__ == "__main__":
    main(globals())
