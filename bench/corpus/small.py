"""Small programs that train, and one on complex numbers. Each takes a seeded generator and the recorder."""
import torch
import torch.nn.functional as F
from torch import nn

from models import words
from train import images, step


def sweep_of_models(rng, rec):
    """Ten small networks one after the other in one process, each of other widths and depths, each gone before the
    next, but for the weights of the best."""
    best = None
    for i in range(10):
        width, depth, batch = rng.randrange(100, 900), rng.randrange(3, 9), rng.randrange(100, 3000)
        layers = [nn.Linear(321, width), nn.ReLU()]
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.1)]
        model = nn.Sequential(*layers, nn.Linear(width, 7))
        optimizer = torch.optim.Adam(model.parameters(), foreach=True)
        data = torch.empty(20011, 321)
        for _ in range(14):
            rec.trace.step()
            step(optimizer, F.cross_entropy(model(data[words(batch)]), words(batch)))
        with torch.no_grad():
            model(data)
        if rng.random() < 0.4:
            best = {k: v.clone() for k, v in model.state_dict().items()}
        del model, optimizer, data, layers
    return best


def learning_to_learn(rng, rec):
    """Five inner steps whose gradients are differentiated again (MAML), a small network, 64 to 300 MiB."""
    shapes = ((64, 3, 3, 3), (64, 64, 3, 3), (64, 64, 3, 3), (64, 64, 3, 3), (5, 1600))
    weights = [nn.Parameter(torch.empty(*s)) for s in shapes]
    optimizer = torch.optim.Adam(weights, foreach=True)

    def run(w, x):
        for k in w[:4]:
            x = F.max_pool2d(F.relu(F.conv2d(x, k, padding=1)), 2)
        return F.linear(x.flatten(1), w[4])

    for _ in range(26):
        rec.trace.step()
        for _ in range(2):
            shots = rng.choice((1, 5))
            fast = list(weights)
            for _ in range(5):
                loss = F.cross_entropy(run(fast, images(5 * shots, 84)), words(5 * shots))
                slopes = torch.autograd.grad(loss, fast, create_graph=True)
                fast = [w - 0.01 * s for w, s in zip(fast, slopes)]
            F.cross_entropy(run(fast, images(40, 84)), words(40)).backward()
            del fast, slopes, loss
        optimizer.step()
        optimizer.zero_grad()


def physics_operator(rng, rec):
    """A Fourier operator on grids of three resolutions, complex weights, and rollouts through twelve steps."""
    width, modes = 40, 16
    weights = nn.ParameterList(torch.empty(width, width, modes, modes, dtype=torch.cfloat) for _ in range(8))
    lift, drop = nn.Linear(5, width), nn.Linear(width, 1)
    mixes = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(4))
    optimizer = torch.optim.Adam([*weights, *lift.parameters(), *drop.parameters(), *mixes.parameters()], foreach=True)
    for _ in range(9):
        rec.trace.step()
        n = rng.choice((48, 64, 85))
        field = torch.empty(4, n, n, 4)
        loss = 0
        for _ in range(rng.randrange(4, 9)):
            x = lift(torch.cat([field, torch.empty(4, n, n, 1)], -1)).permute(0, 3, 1, 2)
            for i, mix in enumerate(mixes):
                f = torch.fft.rfft2(x)
                g = torch.zeros_like(f)
                a = torch.einsum("bixy,ioxy->boxy", f[:, :, :modes, :modes], weights[2 * i])
                b = torch.einsum("bixy,ioxy->boxy", f[:, :, -modes:, :modes], weights[2 * i + 1])
                g = torch.cat([torch.cat([a, b], 2), g[:, :, 2 * modes:, :modes]], 2)
                y = torch.fft.irfft2(F.pad(g, (0, f.shape[-1] - modes)), s=(n, n))
                x = F.gelu(y + mix(x))
            out = drop(x.permute(0, 2, 3, 1))
            loss = loss + F.mse_loss(out, torch.empty_like(out))
            field = torch.cat([field[..., 1:], out], -1)
        step(optimizer, loss)
