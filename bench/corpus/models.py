"""The models of the recorded programs, in plain PyTorch."""
import torch
import torch.nn.functional as F
from torch import nn

aten = torch.ops.aten


def attend(q, k, v, causal=False, eager=False, bias=None):
    """Attention by one fused kernel, or as programs had it before there was one."""
    if not eager:
        if bias is None:
            return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[0]
        return aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, 0.0, causal)[0]
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~mask, float("-inf"))
    return F.dropout(scores.softmax(-1), 0.1) @ v


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads=None, eager=False):
        super().__init__()
        self.heads, self.kv_heads, self.eager = heads, kv_heads or heads, eager
        self.size = width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, self.kv_heads * self.size, bias=False)
        self.v = nn.Linear(width, self.kv_heads * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x, memory=None, cache=None, causal=False):
        source = x if memory is None else memory
        split = lambda t, n: t.unflatten(-1, (n, self.size)).transpose(1, 2)
        q = split(self.q(x), self.heads)
        k, v = split(self.k(source), self.kv_heads), split(self.v(source), self.kv_heads)
        if cache is not None:  # grown by concatenation
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [k, v]
        if self.kv_heads != self.heads:
            k = k.repeat_interleave(self.heads // self.kv_heads, 1)
            v = v.repeat_interleave(self.heads // self.kv_heads, 1)
        y = attend(q, k, v, causal and q.shape[2] > 1, self.eager)
        return self.out(y.transpose(1, 2).flatten(2))


class SwiGlu(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Gelu(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        return F.dropout(self.down(F.gelu(self.up(x))), 0.1, self.training)


class Experts(nn.Module):
    """A mixture of experts. Loads are drawn, as tensors have no values here."""

    def __init__(self, width, inner, count, rng, top=2):
        super().__init__()
        self.gate, self.rng, self.top = nn.Linear(width, count, bias=False), rng, top
        self.experts = nn.ModuleList(SwiGlu(width, inner) for _ in range(count))

    def forward(self, x):
        flat = x.flatten(0, -2)
        weights, _ = self.gate(flat).softmax(-1).topk(self.top)
        shares = [self.rng.gammavariate(1.5, 1.0) for _ in self.experts]
        out = torch.zeros_like(flat)
        for expert, share in zip(self.experts, shares):
            count = int(flat.shape[0] * self.top * share / sum(shares))
            if count == 0:
                continue
            index = torch.empty(count, dtype=torch.long)
            y = expert(flat[index]) * weights[index][:, :1]
            out = out.index_add(0, index, y)
        return out.view_as(x)


class Layer(nn.Module):
    def __init__(self, width, heads, inner, kv_heads=None, eager=False, cross=False, feed=None):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, kv_heads, eager)
        self.norm2, self.feed = nn.LayerNorm(width), feed or Gelu(width, inner)
        self.cross = Attention(width, heads, None, eager) if cross else None
        self.norm3 = nn.LayerNorm(width) if cross else None

    def forward(self, x, memory=None, cache=None, causal=False):
        x = x + self.attention(self.norm1(x), cache=cache, causal=causal)
        if self.cross is not None:
            x = x + self.cross(self.norm3(x), memory)
        return x + self.feed(self.norm2(x))


class Transformer(nn.Module):
    """An encoder or a decoder, with or without words."""

    def __init__(self, layers, width, heads, inner=None, words=0, causal=True, feed=None, **layer):
        super().__init__()
        inner, self.causal = inner or 4 * width, causal
        self.embed = nn.Embedding(words, width) if words else None
        make = lambda: Layer(width, heads, inner, feed=feed() if feed else None, **layer)
        self.layers = nn.ModuleList(make() for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False) if words else None

    def forward(self, x, memory=None, caches=None, around=None, last=False, hidden=False):
        """`around(layer, ...)` calls a layer, such as for checkpointing. `last`: only the last word's result."""
        if self.embed is not None:
            x = self.embed(x)
        for i, layer in enumerate(self.layers):
            rest = (memory, caches[i] if caches is not None else None, self.causal)
            x = around(layer, x, *rest) if around else layer(x, *rest)
        x = self.norm(x[:, -1:] if last else x)
        return x if self.head is None or hidden else self.head(x)


def words(*shape):
    return torch.empty(shape, dtype=torch.long)


class Residual(nn.Module):
    """Two convolutions with group norms, and what the time adds."""

    def __init__(self, inner, outer, time=0):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, outer), nn.Conv2d(outer, outer, 3, padding=1)
        self.time = nn.Linear(time, outer) if time else None
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x, time=None):
        y = self.conv1(F.silu(self.norm1(x)))
        if self.time is not None:
            y = y + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class Spatial(nn.Module):
    """Attention over the places of an image, and across to a text."""

    def __init__(self, width, heads, text=0):
        super().__init__()
        self.norm, self.layer = nn.GroupNorm(8, width), Layer(width, heads, 4 * width, cross=text > 0)
        self.text = nn.Linear(text, width) if text else None

    def forward(self, x, text=None):
        places = self.norm(x).flatten(2).transpose(1, 2).contiguous()
        y = self.layer(places, self.text(text) if self.text is not None else None)
        return x + y.transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """As diffusion models have it; `attended` names the depths with attention."""

    def __init__(self, channels=3, width=64, scales=(1, 2, 4, 4), attended=(2, 3), time=0, text=0, out=None):
        super().__init__()
        widths = [width * s for s in scales]
        heads = lambda w: max(1, w // 64)
        place = lambda i, w: Spatial(w, heads(w), text) if i in attended else None
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time)) if time else None
        self.width = width
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        self.down, self.places, self.shrink = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        inner = width
        for i, w in enumerate(widths):
            self.down.append(nn.ModuleList([Residual(inner, w, time), Residual(w, w, time)]))
            self.places.append(place(i, w) or nn.Identity())
            self.shrink.append(nn.Conv2d(w, w, 3, 2, 1) if i + 1 < len(widths) else nn.Identity())
            inner = w
        self.middle = nn.ModuleList([Residual(inner, inner, time), Residual(inner, inner, time)])
        self.up, self.back, self.grow = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for i, w in reversed(list(enumerate(widths))):
            self.up.append(nn.ModuleList([Residual(inner + w, w, time), Residual(w, w, time)]))
            self.back.append(place(i, w) or nn.Identity())
            self.grow.append(nn.Conv2d(w, w, 3, padding=1) if i > 0 else nn.Identity())
            inner = w
        self.last = nn.Sequential(nn.GroupNorm(8, inner), nn.SiLU(), nn.Conv2d(inner, out or channels, 3, padding=1))

    def forward(self, x, text=None):
        time = self.time(torch.empty(x.shape[0], self.width, dtype=x.dtype)) if self.time is not None else None
        x = self.first(x)
        skips = []
        for i, pair in enumerate(self.down):
            for r in pair:
                x = r(x, time)
            x = self.places[i](x, text) if isinstance(self.places[i], Spatial) else x
            skips.append(x)
            x = self.shrink[i](x)
        for r in self.middle:
            x = r(x, time)
        for i, pair in enumerate(self.up):
            skip = skips.pop()
            if i > 0:
                x = self.grow[i - 1](F.interpolate(x, size=skip.shape[2:]))
            x = torch.cat([x, skip], 1)
            for r in pair:
                x = r(x, time)
            x = self.back[i](x, text) if isinstance(self.back[i], Spatial) else x
        return self.last(x)


class Lstm(nn.Module):
    """Cell by cell, so that each step keeps what its backward needs."""

    def __init__(self, count, width, layers=2):
        super().__init__()
        self.embed, self.head = nn.Embedding(count, width), nn.Linear(width, count)
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(layers))

    def forward(self, x, state=None):
        e = self.embed(x)
        zero = lambda: torch.zeros(x.shape[0], e.shape[-1])
        state = state or [(zero(), zero()) for _ in self.cells]
        outs = []
        for t in range(x.shape[1]):
            h = e[:, t]
            for i, cell in enumerate(self.cells):
                gates = F.linear(h, cell.weight_ih, cell.bias_ih) + F.linear(state[i][0], cell.weight_hh, cell.bias_hh)
                a, b, c, d = gates.chunk(4, 1)
                kept = torch.sigmoid(b) * state[i][1] + torch.sigmoid(a) * torch.tanh(c)
                h = torch.sigmoid(d) * torch.tanh(kept)
                state[i] = (h, kept)
            outs.append(h)
        return self.head(torch.stack(outs, 1)), state


class Sage(nn.Module):
    """GraphSAGE over sampled neighbourhoods."""

    def __init__(self, inner, width, classes, layers=3):
        super().__init__()
        sizes = [inner] + [width] * (layers - 1) + [classes]
        self.own = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.near = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in zip(sizes, sizes[1:]))

    def forward(self, x, hops):
        """`hops`: (targets, edges) of each layer."""
        for i, (targets, edges) in enumerate(hops):
            source, target = words(edges), words(edges)
            messages = x[source]
            total = torch.zeros(targets, x.shape[1]).index_add(0, target, messages)
            count = torch.zeros(targets, 1).index_add(0, target, torch.ones(edges, 1))
            y = self.own[i](x[:targets]) + self.near[i](total / count)
            x = F.dropout(F.relu(y), 0.5) if i + 1 < len(hops) else y
        return x
