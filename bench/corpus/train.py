"""Programs that train. Each takes a seeded generator and the recorder."""
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import models
from models import Transformer, UNet, words


def images(batch, height, width=None, channels=3, dtype=None):
    return torch.empty(batch, channels, height, width or height, dtype=dtype)


def adam(model, **more):
    return torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True, **more)


def step(optimizer, loss, clip=None):
    loss.backward()
    if clip is not None:  # as torch.nn.utils.clip_grad_norm_ does it, which refuses this device
        slopes = [p.grad for p in clip.parameters() if p.grad is not None]
        whole = torch.stack(torch._foreach_norm(slopes)).norm()
        torch._foreach_mul_(slopes, (1.0 / (whole + 1e-6)).clamp(max=1.0))
    optimizer.step()
    optimizer.zero_grad()


def around_checkpoint(layer, *args):
    return checkpoint(layer, *args, use_reentrant=False, preserve_rng_state=False)


def words_loss(model, batch, length, **more):
    x = words(batch, length)
    return F.cross_entropy(model(x, **more).flatten(0, 1), words(batch * length))


def lengths(rng, count, median, most, spread=0.6):
    """The longest of so many random lengths."""
    return min(most, max(8, int(max(rng.lognormvariate(math.log(median), spread) for _ in range(count)))))


def vit_fixed(rng, rec):
    """ViT-B/16, batch 48, AdamW, fixed shapes, gradients clipped."""
    patch, model = nn.Conv2d(3, 768, 16, 16), Transformer(12, 768, 12, causal=False)
    head = nn.Linear(768, 1000)
    whole = nn.ModuleList([patch, model, head])
    optimizer = adam(whole)
    for _ in range(14):
        rec.trace.step()
        x = patch(images(48, 224)).flatten(2).transpose(1, 2)
        step(optimizer, F.cross_entropy(head(model(x).mean(1)), words(48)), whole)


def convnet_progressive(rng, rec):
    """EfficientNet-B3 while images grow from 128 to 320 and batches shrink, RMSprop, evaluation in between."""
    import torchvision
    model = torchvision.models.efficientnet_b3()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
    for size, batch in ((128, 64), (192, 40), (256, 24), (320, 16)):
        for _ in range(5):
            rec.trace.step()
            step(optimizer, F.cross_entropy(model(images(batch, size)), words(batch)))
        model.eval()
        with torch.no_grad():
            for _ in range(2):
                model(images(batch * 2, size + 32))
        model.train()


def segmentation_crops(rng, rec):
    """A U-Net on crops of ever new sizes, small, SGD with momentum."""
    model = UNet(1, 24, (1, 2, 4, 8), (), out=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
    for _ in range(120):
        rec.trace.step()
        h, w = (rng.randrange(96, 260) // 4 * 4 for _ in range(2))
        out = model(images(2, h, w, 1))
        step(optimizer, F.cross_entropy(out, words(2, *out.shape[2:])))


def diffusion_buckets(rng, rec):
    """A latent diffusion U-Net with text, images in buckets of aspects, bf16, an average of its weights (EMA)."""
    model = UNet(4, 192, (1, 2, 4, 4), (1, 2, 3), 768, 768).bfloat16()
    average = [p.detach().clone() for p in model.parameters()]
    optimizer = adam(model)
    shapes = [(64, 64), (56, 72), (48, 80), (80, 48), (72, 56), (96, 40)]
    for _ in range(22):
        rec.trace.step()
        h, w = rng.choice(shapes)
        batch = rng.choice((4, 8))
        x, text = images(batch, h, w, 4, torch.bfloat16), torch.empty(batch, 77, 768, dtype=torch.bfloat16)
        noise = torch.randn_like(x)
        step(optimizer, F.mse_loss(model(x + noise, text), noise), model)
        with torch.no_grad():
            torch._foreach_lerp_(average, list(model.parameters()), 0.001)


def gan_small(rng, rec):
    """A DCGAN, 150 MiB: two optimizers take turns, gradient penalty every fourth step (second derivatives)."""
    sizes = (256, 128, 64, 32)
    up = [nn.ConvTranspose2d(100, 256, 4)]
    for a, b in zip(sizes, sizes[1:]):
        up += [nn.BatchNorm2d(a), nn.ReLU(), nn.ConvTranspose2d(a, b, 4, 2, 1)]
    g = nn.Sequential(*up, nn.BatchNorm2d(32), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh())
    down = [nn.Conv2d(3, 32, 4, 2, 1)]
    for a, b in ((32, 64), (64, 128), (128, 256)):
        down += [nn.LeakyReLU(0.2), nn.Conv2d(a, b, 4, 2, 1)]
    d = nn.Sequential(*down, nn.Flatten(), nn.LazyLinear(1))
    d(images(1, 64))
    of_g, of_d = adam(g), adam(d)
    for i in range(130):
        rec.trace.step()
        batch = 96 if i % 16 != 15 else rng.randrange(20, 90)
        real, fake = images(batch, 64), g(torch.empty(batch, 100, 1, 1))
        loss = F.softplus(d(fake.detach())).mean() + F.softplus(-d(real)).mean()
        if i % 4 == 0:
            x = real.detach().requires_grad_()
            slope, = torch.autograd.grad(d(x).sum(), x, create_graph=True)
            loss = loss + slope.square().sum((1, 2, 3)).mean()
        step(of_d, loss)
        step(of_g, F.softplus(-d(fake)).mean())
        of_d.zero_grad()


def lstm_words(rng, rec):
    """A language model of LSTM cells, truncated backward through time over varying lengths, odd widths."""
    model = models.Lstm(10007, 650)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, foreach=True)
    state = None
    for i in range(24):
        rec.trace.step()
        length = max(5, int(rng.gauss(35, 8)))
        out, state = model(words(20, length), state)
        step(optimizer, F.cross_entropy(out.flatten(0, 1), words(20 * length)), model)
        state = [(a.detach(), b.detach()) for a, b in state]


def encoder_varied_checkpointed(rng, rec):
    """An encoder of BERT-large's shape with ever new lengths, checkpointed layers, gradients of three batches."""
    model = Transformer(24, 1024, 16, words=30522, causal=False, eager=True)
    optimizer = adam(model)
    for i in range(36):
        rec.trace.step()
        loss = words_loss(model, 16, lengths(rng, 16, 110, 512), around=around_checkpoint)
        loss.backward()
        if i % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


class Translator(nn.Module):
    def __init__(self, layers=6, width=512, heads=8, count=32128):
        super().__init__()
        self.encoder = Transformer(layers, width, heads, causal=False, eager=True)
        self.decoder = Transformer(layers, width, heads, words=count, cross=True, eager=True)

    def forward(self, source, target):
        memory = self.encoder(self.decoder.embed(source))
        return self.decoder(target, memory)


def translation_words_per_batch(rng, rec):
    """Encoder and decoder; each batch has about as many words, so batch size and both lengths vary. Label smoothing."""
    model = Translator()
    optimizer = adam(model)
    for _ in range(45):
        rec.trace.step()
        source = lengths(rng, 4, 30, 200)
        target = max(5, int(source * rng.uniform(0.8, 1.25)))
        batch = max(2, 4096 // max(source, target))
        out = model(words(batch, source), words(batch, target))
        step(optimizer, F.cross_entropy(out.flatten(0, 1), words(batch * target), label_smoothing=0.1))


def mixture_of_experts(rng, rec):
    """A mixture of eight experts a layer, loads vary from step to step."""
    feed = lambda: models.Experts(768, 2048, 8, rng)
    model = Transformer(8, 768, 12, words=32000, feed=feed).bfloat16()
    optimizer = adam(model)
    for _ in range(16):
        rec.trace.step()
        step(optimizer, words_loss(model, 8, 512), model)


def graph_sampled(rng, rec):
    """GraphSAGE on sampled neighbourhoods; features are gathered for each batch, validation on larger ones."""
    model = models.Sage(602, 256, 41)
    optimizer = adam(model)

    def batch(targets):
        sizes, hops = [targets], []
        for fan in (5, 10, 15):
            edges = int(sizes[-1] * fan * rng.uniform(0.75, 1.0))
            sizes.append(sizes[-1] + int(edges * rng.uniform(0.45, 0.8)))
            hops.insert(0, (sizes[-2], edges))
        return model(torch.empty(sizes[-1], 602), hops)

    for i in range(170):
        rec.trace.step()
        step(optimizer, F.cross_entropy(batch(512), words(512)))
        if i % 20 == 19:
            with torch.no_grad():
                batch(1500)


def sharded_offloaded(rng, rec):
    """Weights in shards: each layer is gathered by a second stream one layer ahead, its gradient reduced there; what
    backward needs goes to the host and comes back on a third stream."""
    layers = [models.Layer(2048, 16, 8192).bfloat16() for _ in range(16)]
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    types = (torch.bfloat16, torch.float, torch.float, torch.float)
    shards = [[torch.zeros(s // 8, dtype=t) for t in types] for s in sizes]
    for _ in range(14):
        rec.trace.step()
        length = rng.choice((768, 1024, 1024, 1280))
        x = torch.empty(4, length, 2048, dtype=torch.bfloat16)

        def gather(i):
            with rec.stream(1):
                whole = torch.empty(sizes[i], dtype=torch.bfloat16)
            rec.record_stream(whole)
            return whole

        ahead, inputs = gather(0), []
        for i, layer in enumerate(layers):
            whole, ahead = ahead, gather(i + 1) if i + 1 < len(layers) else None
            with torch.no_grad():
                y = layer(x, None, None, True)
            rec.record_stream(x)  # a copy to the host reads it
            inputs.append(tuple(x.shape))
            x = y
            del whole, y
        slope = torch.empty_like(x)
        del x
        ahead = gather(len(layers) - 1)
        for i in reversed(range(len(layers))):
            whole, ahead = ahead, gather(i - 1) if i > 0 else None
            with rec.stream(2):
                back = torch.empty(inputs[i], dtype=torch.bfloat16)
            rec.record_stream(back)
            back.requires_grad_()
            y = layers[i](back, None, None, True)
            flat = torch.empty(sizes[i], dtype=torch.bfloat16)
            slope, = torch.autograd.grad(y, back, slope)
            with rec.stream(1):
                shard = torch.empty(sizes[i] // 8, dtype=torch.bfloat16)
                shards[i][1].add_(shard)
            rec.record_stream(flat)
            del whole, back, y, flat, shard
        for s in shards:
            torch._foreach_add_(s[2:], 1.0)
            s[0].copy_(s[1])


def data_parallel_buckets(rng, rec):
    """ResNet-101; gradients are copied into buckets that a second stream reduces, the next batch comes on a third."""
    import torchvision
    model = torchvision.models.resnet101()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    batch = 32

    def fetch():
        with rec.stream(2):
            x, y = images(batch, 224), words(batch)
        rec.record_stream(x)
        return x, y

    ahead = fetch()
    for i in range(14):
        rec.trace.step()
        x, y = ahead
        batch = 32 if rng.random() > 0.2 else 21
        ahead = fetch()
        F.cross_entropy(model(x), y).backward()
        waiting, size = [], 0
        for p in reversed(list(model.parameters())):
            waiting.append(p.grad)
            size += p.numel()
            if size > 25 << 18:
                with rec.stream(1):
                    bucket = torch.empty(size)
                rec.record_stream(bucket)
                waiting, size = [], 0
        del bucket
        optimizer.step()
        optimizer.zero_grad()


def pipeline_stage(rng, rec):
    """One stage of a pipeline, one forward and one backward in turns, four micro-batches in flight."""
    model = Transformer(8, 1280, 20).bfloat16()
    optimizer = adam(model)
    for _ in range(5):
        rec.trace.step()
        flight = []

        def backward():
            x, y = flight.pop(0)
            with rec.stream(1):
                slope = torch.empty_like(y)
            rec.record_stream(slope)
            y.backward(slope)
            rec.record_stream(x.grad)  # sent to the stage before

        for _ in range(12):
            with rec.stream(1):
                x = torch.empty(2, lengths(rng, 2, 500, 1024), 1280, dtype=torch.bfloat16)
            rec.record_stream(x)
            x.requires_grad_()
            flight.append((x, model(x)))
            del x
            if len(flight) == 4:
                backward()
        while flight:
            backward()
        optimizer.step()
        optimizer.zero_grad()


def detector_queries(rng, rec):
    """ResNet-34 and a transformer over its map with a hundred queries; images of ever new sizes, two learning rates."""
    import torchvision
    full = torchvision.models.resnet34()
    body = nn.Sequential(*list(full.children())[:-2])
    model = nn.ModuleList([body, nn.Conv2d(512, 256, 1), Transformer(6, 256, 8, 2048, causal=False, eager=True),
                           Transformer(6, 256, 8, 2048, cross=True, causal=False, eager=True), nn.Linear(256, 96)])
    queries = nn.Parameter(torch.empty(1, 100, 256))
    optimizer = adam(model)
    for _ in range(24):
        rec.trace.step()
        h, w = rng.randrange(480, 800), rng.randrange(480, 1100)
        with_mask = images(2, h, w)
        memory = model[2](model[1](body(with_mask)).flatten(2).transpose(1, 2))
        out = model[4](model[3](queries.expand(2, -1, -1), memory))
        cost = torch.cdist(out[..., :4].flatten(0, 1), torch.empty(rng.randrange(2, 60), 4), p=1)
        step(optimizer, out.square().mean() + cost.mean(), model)


def audio_masked(rng, rec):
    """Convolutions over raw sound of odd lengths, then a transformer, as wav2vec has it."""
    shapes = [(1, 256, 10, 5)] + [(256, 256, 3, 2)] * 4 + [(256, 256, 2, 2)] * 2
    ears = nn.Sequential(*[m for a, b, k, s in shapes for m in (nn.Conv1d(a, b, k, s), nn.GroupNorm(1, b), nn.GELU())])
    model = nn.ModuleList([ears, nn.Linear(256, 512), Transformer(8, 512, 8, causal=False)])
    optimizer = adam(model)
    for _ in range(48):
        rec.trace.step()
        sound = torch.empty(4, 1, int(rng.uniform(1.5, 9.0) * 16000) | 1)
        x = model[1](ears(sound).transpose(1, 2))
        hidden = x.detach().clone()
        step(optimizer, F.cosine_similarity(model[2](x), hidden, -1).mean())


def click_rates(rng, rec):
    """Recommendation: 26 tables of very different sizes, sparse gradients, small layers above."""
    sizes = [int(10 ** rng.uniform(2.0, 6.0)) for _ in range(26)]
    tables = nn.ModuleList(nn.EmbeddingBag(n, 32, mode="sum") for n in sizes)
    bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 32))
    top = nn.Sequential(nn.Linear(27 * 26 // 2 + 32, 512), nn.ReLU(), nn.Linear(512, 1))
    dense = torch.optim.Adam([*bottom.parameters(), *top.parameters()], foreach=True)
    for _ in range(110):
        rec.trace.step()
        batch = 4096
        low = bottom(torch.empty(batch, 13))
        rows, places = [low], []
        for n in sizes:
            many = int(batch * rng.uniform(1.0, 4.0))
            rows.append(torch.zeros(batch, 32).index_add(0, words(many), torch.empty(many, 32, requires_grad=True)))
            places.append(words(many))
        stacked = torch.stack(rows, 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)[:, words(27 * 26 // 2)]
        loss = F.binary_cross_entropy_with_logits(top(torch.cat([low, products], 1))[:, 0], torch.empty(batch))
        step(dense, loss)
        for table, place in zip(tables, places):
            table.weight.detach().index_add_(0, place, torch.empty(place.shape[0], 32).mul_(0.01))


def reinforced_words(rng, rec):
    """Policy, reference and critic: generate with caches, score, then train policy and critic on what was generated."""
    make = lambda: Transformer(8, 768, 12, words=32000).bfloat16()
    policy, reference, critic = make(), make(), Transformer(8, 768, 12).bfloat16()
    value = nn.Linear(768, 1).bfloat16()
    both = nn.ModuleList([policy, critic, value])
    optimizer = adam(both)
    for _ in range(3):
        rec.trace.step()
        prompt, batch = lengths(rng, 16, 60, 250), 16
        total = prompt
        with torch.no_grad():
            caches = [[] for _ in policy.layers]
            policy(words(batch, prompt), caches=caches, last=True)
            for _ in range(rng.randrange(40, 90)):
                policy(words(batch, 1), caches=caches, last=True).softmax(-1).argmax(-1)
                total += 1
            del caches
            known = reference(words(batch, total)).log_softmax(-1).gather(-1, words(batch, total, 1))
            known_value = value(critic(policy.embed(words(batch, total))))
        for _ in range(4):
            part = batch // 4
            now = policy(words(part, total)).log_softmax(-1).gather(-1, words(part, total, 1))
            worth = value(critic(policy.embed(words(part, total)).detach()))
            loss = (now - known[:part]).exp().mean() + (worth - known_value[:part]).square().mean()
            step(optimizer, loss, both)


class LowRank(nn.Module):
    def __init__(self, linear, rank):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.a = nn.Linear(linear.in_features, rank, bias=False)
        self.b = nn.Linear(rank, linear.out_features, bias=False)

    def forward(self, x):
        return self.linear(x) + self.b(self.a(F.dropout(x, 0.05)))


def adapters_packed(rng, rec):
    """Low-rank adapters on a frozen model of 1.5 B, packed rows of varying length, checkpointed."""
    feed = lambda: models.SwiGlu(2048, 5504)
    model = Transformer(20, 2048, 16, words=32000, kv_heads=4, feed=feed).bfloat16().requires_grad_(False)
    for layer in model.layers:
        for name in ("q", "v", "out"):
            setattr(layer.attention, name, LowRank(getattr(layer.attention, name), 16).bfloat16())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], foreach=True)
    for i in range(14):
        rec.trace.step()
        for _ in range(2):
            length = rng.randrange(2400, 4097)
            # The embedding has no gradient, but a layer that is checkpointed needs an input that has.
            x = model.embed(words(1, length)).requires_grad_()
            for layer in model.layers:
                x = around_checkpoint(layer, x, None, None, True)
            loss = 0
            for part in model.norm(x)[0].split(1024):  # the loss in pieces
                loss = loss + F.cross_entropy(model.head(part), words(part.shape[0]))
            loss.backward()
            del x, loss
        optimizer.step()
        optimizer.zero_grad()


def contrastive_cached(rng, rec):
    """Images and texts, all embeddings of a large batch first, then the parts again with gradients."""
    patch, see = nn.Conv2d(3, 512, 16, 16), Transformer(8, 512, 8, causal=False)
    read = Transformer(6, 512, 8, words=49408)
    read.head = None
    whole = nn.ModuleList([patch, see, read])
    optimizer = adam(whole)
    look = lambda n: F.normalize(see(patch(images(n, 224)).flatten(2).transpose(1, 2)).mean(1), dim=-1)
    for _ in range(6):
        rec.trace.step()
        length = rng.randrange(24, 78)
        say = lambda n: F.normalize(read(words(n, length))[:, -1], dim=-1)
        with torch.no_grad():
            pictures = torch.cat([look(48) for _ in range(5)])
            texts = torch.cat([say(48) for _ in range(5)])
        a, b = pictures.requires_grad_(), texts.requires_grad_()
        scores = a @ b.t() * 14.3
        (F.cross_entropy(scores, words(240)) + F.cross_entropy(scores.t(), words(240))).backward()
        for i in range(5):
            part = slice(i * 48, i * 48 + 48)
            (look(48) * a.grad[part]).sum().backward()
            (say(48) * b.grad[part]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def video_clips(rng, rec):
    """R(2+1)D-18 on clips of 8 to 20 frames at three sizes."""
    import torchvision
    model = torchvision.models.video.r2plus1d_18()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    for _ in range(30):
        rec.trace.step()
        size, frames = rng.choice((96, 112, 128)), rng.randrange(8, 21)
        x = torch.empty(4, 3, frames, size, size)
        step(optimizer, F.cross_entropy(model(x), words(4)))


def stochastic_depth(rng, rec):
    """Swin-T, layers dropped at random, batches mixed up, a mean of the weights kept every tenth step."""
    import torchvision
    model = torchvision.models.swin_t()
    optimizer = adam(model)
    kept = []
    stages = [s for s in model.features if isinstance(s, nn.Sequential) and not isinstance(s[0], nn.Conv2d)]
    for i in range(12):
        rec.trace.step()
        x = images(32, 224)
        x = 0.7 * x + 0.3 * x[words(32)]
        x = model.features[0](x)
        for part in model.features[1:]:
            if part in stages:
                for block in part:
                    if rng.random() > 0.15:
                        x = block(x)
            else:
                x = part(x)
        out = model.head(model.norm(x).mean((1, 2)))
        step(optimizer, F.cross_entropy(out, words(32)))
        if i % 5 == 4:
            kept = kept[-1:] + [[p.detach().clone() for p in model.parameters()]]


def perceptual_autoencoder(rng, rec):
    """An autoencoder of images whose loss goes through a frozen VGG-16; accumulation over parts of a batch."""
    import torchvision
    judge = torchvision.models.vgg16().features[:23].requires_grad_(False)
    model = UNet(3, 48, (1, 2, 4), (2,))
    optimizer = adam(model)
    for _ in range(26):
        rec.trace.step()
        size = rng.choice((128, 160, 192, 224))
        for _ in range(2):
            x = images(4, size)
            y = model(x)
            loss = F.l1_loss(x, y)
            a, b = x, y
            for layer in judge:
                a, b = layer(a), layer(b)
                if isinstance(layer, nn.MaxPool2d):
                    loss = loss + F.mse_loss(a, b)
            loss.backward()
            del x, y, a, b, loss
        optimizer.step()
        optimizer.zero_grad()
