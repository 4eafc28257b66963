"""Programs that answer, sample or search. Each takes a seeded generator and the recorder."""
import collections

import torch
import torch.nn.functional as F
from torch import nn

import models
from models import Transformer, UNet, words
from train import Translator, images


def tokens_small(rng, rec):
    """A small language model, one prompt after the other, token by token, caches grown by concatenation."""
    model = Transformer(6, 768, 12, words=50257).eval()
    with torch.no_grad():
        for _ in range(9):
            rec.trace.step()
            caches = [[] for _ in model.layers]
            model(words(1, rng.randrange(10, 400)), caches=caches, last=True)
            for _ in range(rng.randrange(10, 70)):
                (model(words(1, 1), caches=caches, last=True) / 0.8).softmax(-1).argmax(-1)


def requests_interleaved(rng, rec):
    """A server of 1 B: requests come at random, prompts run between the tokens of others, each with its cache."""
    feed = lambda: models.SwiGlu(2048, 5632)
    model = Transformer(10, 2048, 32, words=32000, kv_heads=8, feed=feed).bfloat16().eval()
    live = []
    with torch.no_grad():
        for _ in range(60):
            rec.trace.step()
            while len(live) < 6 and rng.random() < 0.35:
                caches = [[] for _ in model.layers]
                model(words(1, min(6000, int(rng.lognormvariate(6.5, 1.0)))), caches=caches, last=True)
                live.append([caches, rng.randrange(4, 60)])
            for request in live:
                model(words(1, 1), caches=request[0], last=True).argmax(-1)
                request[1] -= 1
            live = [r for r in live if r[1] > 0]
            request = None


def beams(rng, rec):
    """Beam search: six beams, caches put into the order of the survivors at each step, sentences of varying length."""
    model = Translator(6).eval()
    decoder = model.decoder
    with torch.no_grad():
        for _ in range(7):
            rec.trace.step()
            batch = rng.randrange(4, 13)
            memory = model.encoder(decoder.embed(words(batch, rng.randrange(10, 120)))).repeat_interleave(6, 0)
            caches = [[] for _ in decoder.layers]
            for _ in range(rng.randrange(12, 60)):
                scores = decoder(words(memory.shape[0], 1), memory, caches=caches)[:, -1].log_softmax(-1)
                scores.view(-1, 6 * scores.shape[-1]).topk(12)
                if rng.random() < 0.06 and memory.shape[0] > 6:  # one is done
                    keep = memory.shape[0] - 6
                else:
                    keep = memory.shape[0]
                order = words(keep)
                memory = memory.index_select(0, order) if keep < memory.shape[0] else memory
                for c in caches:
                    c[:] = [t.index_select(0, order) for t in c]


def drafts_verified(rng, rec):
    """A small model proposes five words, the large one checks them at once; what it rejects is cut from both caches."""
    large = Transformer(12, 1536, 12, words=32000).bfloat16().eval()
    small = Transformer(3, 512, 8, words=32000).bfloat16().eval()
    with torch.no_grad():
        for _ in range(7):
            rec.trace.step()
            caches = [[] for _ in large.layers], [[] for _ in small.layers]
            length = rng.randrange(50, 1500)
            for model, cache in zip((large, small), caches):
                model(words(4, length), caches=cache, last=True)
            for _ in range(rng.randrange(5, 20)):
                for _ in range(5):
                    small(words(4, 1), caches=caches[1], last=True).softmax(-1).argmax(-1)
                large(words(4, 6), caches=caches[0]).softmax(-1)
                accepted = rng.randrange(1, 6)
                length += accepted
                for cache in caches:
                    for c in cache:
                        c[:] = [t[:, :, :length].contiguous() for t in c]


def pages_and_adapters(rng, rec):
    """Attention over pages of one large pool, prompts in pieces, and adapters of eleven sizes that come and go."""
    width, count = 2048, 12
    model = Transformer(count, width, 16, words=32000, feed=lambda: models.SwiGlu(width, 5504)).bfloat16().eval()
    pool = torch.zeros(count, 2, 4000, 16, width, dtype=torch.bfloat16)
    adapters = collections.OrderedDict()
    with torch.no_grad():
        for _ in range(70):
            rec.trace.step()
            which = int(rng.paretovariate(0.6)) % 40
            if which not in adapters:
                rank = rng.choice((8, 16, 32, 64))
                adapters[which] = [torch.empty(rank, width, dtype=torch.bfloat16) for _ in range(count * 4)]
                if len(adapters) > 11:
                    adapters.popitem(last=False)
            adapters.move_to_end(which)
            tokens = rng.choice((rng.randrange(1, 64), rng.randrange(200, 513), 512))
            x = model.embed(words(tokens))
            for i, layer in enumerate(model.layers):
                y = layer.norm1(x)
                q, k, v = layer.attention.q(y), layer.attention.k(y), layer.attention.v(y)
                a = adapters[which][4 * i]
                q = q + (y @ a.t()) @ a
                where = words(tokens)
                pool[i, 0].view(-1, width).index_copy_(0, where, k)
                pool[i, 1].view(-1, width).index_copy_(0, where, v)
                out, partial = torch.empty_like(q), torch.empty(tokens, 16, rng.randrange(1, 9), 130)
                x = x + layer.attention.out(out)
                del partial
                x = x + layer.feed(layer.norm2(x))
            logits = model.head(model.norm(x[-min(tokens, 64):])).float()
            logits.softmax(-1).sort(-1)


def embeddings_two_streams(rng, rec):
    """An encoder for search: batches of like lengths on two streams in turns; results are appended to a store."""
    model = Transformer(12, 384, 12, words=30522, causal=False, eager=True).eval()
    store = torch.empty(0, 384)
    held = []
    with torch.no_grad():
        for i in range(150):
            rec.trace.step()
            length = rng.choice((16, 32, 64, 128, 256, rng.randrange(8, 512)))
            with rec.stream(i % 2):
                hidden = model(words(min(64, max(1, 12000 // length)), length), hidden=True)
                held.append(F.normalize(hidden[:, 0], dim=-1))
            rec.record_stream(held[-1])
            del hidden
            if len(held) == 16:
                store = torch.cat([store, *held])
                held = []


def pictures_of_many_sizes(rng, rec):
    """Sampling with guidance and a control branch, one to three pictures of many sizes, decoded in tiles when large."""
    net = UNet(4, 160, (1, 2, 4, 4), (1, 2, 3), 640, 768).half().eval()
    control = UNet(4, 160, (1, 2, 4, 4), (2, 3), 640).half().eval()
    read = Transformer(12, 768, 12, words=49408).half().eval()
    decode = nn.Sequential(nn.Conv2d(4, 256, 3, padding=1), models.Residual(256, 256), nn.Upsample(scale_factor=2),
                           models.Residual(256, 256), nn.Upsample(scale_factor=2), models.Residual(256, 128),
                           nn.Upsample(scale_factor=2), models.Residual(128, 64), nn.Conv2d(64, 3, 3, padding=1))
    decode.half().eval()
    with torch.no_grad():
        for _ in range(14):
            rec.trace.step()
            h, w, batch = rng.randrange(48, 129, 4), rng.randrange(48, 129, 4), rng.randrange(1, 4)
            text = read(words(2 * batch, 77), hidden=True)
            x = torch.randn(batch, 4, h, w, dtype=torch.half)
            hint = torch.empty_like(x)
            for _ in range(rng.randrange(4, 9)):
                twice = torch.cat([x, x])
                side = control(torch.cat([hint, hint]) + twice)
                free, led = (net(twice, text) + side).chunk(2)
                x = x - 0.1 * (free + 7.5 * (led - free))
            del twice, side, free, led
            if h * w > 96 * 96:
                parts = [decode(x[:, :, a:a + 40, b:b + 40]) for a in range(0, h, 32) for b in range(0, w, 32)]
                picture = torch.empty(batch, 3, 8 * h, 8 * w, dtype=torch.half)
                parts.clear()
            else:
                picture = decode(x)
            (picture.float() * 127.5 + 128).clamp(0, 255).to(torch.uint8)
            del picture, x, text, hint


def prompts_on_images(rng, rec):
    """An image encoder with large windows, then many prompts through a small decoder; the last eight are kept."""
    patch, see = nn.Conv2d(3, 768, 16, 16).eval(), Transformer(8, 768, 12, causal=False).eval()
    small = Transformer(2, 256, 8, 2048, cross=True, causal=False).eval()
    neck, wide = nn.Conv2d(768, 256, 1).eval(), nn.ConvTranspose2d(256, 32, 4, 4).eval()
    kept = collections.OrderedDict()
    with torch.no_grad():
        for _ in range(110):
            rec.trace.step()
            which = rng.randrange(16)
            if which not in kept:
                h, w = rng.choice(((1024, 1024), (1024, 768), (768, 1024), (1024, 576)))
                x = patch(images(1, h, w))
                y = see(x.flatten(2).transpose(1, 2))
                kept[which] = neck(y.transpose(1, 2).reshape(x.shape)), torch.empty(3, h, w, dtype=torch.uint8)
                del x, y
                if len(kept) > 8:
                    kept.popitem(last=False)
            memory, picture = kept[which]
            for _ in range(rng.randrange(1, 7)):
                points = rng.randrange(1, 40)
                small(torch.empty(points, 8, 256), memory.flatten(2).transpose(1, 2).expand(points, -1, -1))
                masks = (wide(memory).expand(points, -1, -1, -1)[:, :4] * torch.empty(points, 4, 1, 1)).contiguous()
                F.interpolate(masks, size=picture.shape[1:], mode="bilinear") > 0.0
                del masks


def speech(rng, rec):
    """Speech to text: windows of 30 s, one to four at a time, text token by token with two kinds of caches."""
    ears = nn.Sequential(nn.Conv1d(80, 512, 3, padding=1), nn.GELU(), nn.Conv1d(512, 512, 3, 2, 1), nn.GELU()).eval()
    encoder = Transformer(6, 512, 8, causal=False).eval()
    decoder = Transformer(6, 512, 8, words=51865, cross=True).eval()
    with torch.no_grad():
        for _ in range(12):
            rec.trace.step()
            batch = rng.randrange(1, 5)
            sound = torch.empty(batch, 480000 + rng.randrange(0, 4000))
            shown = torch.stft(sound, 400, 160, window=torch.empty(400), return_complex=True).abs().square()
            loud = (torch.empty(80, 201) @ shown)[..., :3000].clamp(min=1e-10).log10()
            del sound, shown
            memory = encoder(ears(loud).transpose(1, 2))
            caches = [[] for _ in decoder.layers]
            for _ in range(rng.randrange(10, 50)):
                decoder(words(batch, 1), memory, caches=caches, last=True).log_softmax(-1).argmax(-1)


def models_on_demand(rng, rec):
    """Six models share a device that keeps three; the one that was used least lately goes."""
    shapes = {n: (rng.randrange(4, 13), rng.choice((384, 512, 768, 1024))) for n in range(6)}
    loaded = collections.OrderedDict()
    with torch.no_grad():
        for _ in range(60):
            rec.trace.step()
            which = rng.choice((0, 0, 1, 1, 2, 3, 4, 5))
            if which not in loaded:
                if len(loaded) == 3:
                    loaded.popitem(last=False)
                layers, width = shapes[which]
                loaded[which] = Transformer(layers, width, width // 64, words=30522, causal=False).half().eval()
            loaded.move_to_end(which)
            for _ in range(rng.randrange(1, 9)):
                loaded[which](words(rng.randrange(1, 33), rng.choice((32, 64, 128, 200))), hidden=True).mean(1)


def frames_and_crops(rng, rec):
    """A camera: a detector on each frame, two streams in turns, a classifier on as many crops as were found, tracks
    that remember features for a while."""
    import torchvision
    find = torchvision.models.mobilenet_v3_large().features.eval()
    tell = torchvision.models.resnet18().eval()
    tracks = collections.deque()
    with torch.no_grad():
        for i in range(100):
            rec.trace.step()
            with rec.stream(i % 2):
                h, w = rng.choice(((720, 1280), (720, 1280), (540, 960), (1080, 1920)))
                raw = torch.empty(h * 3 // 2, w, dtype=torch.uint8)
                picture = F.interpolate(images(1, h, w), size=(h // 2, w // 2))
                find(picture)
                crops = torch.empty(max(1, int(rng.gauss(14, 8))), 3, 128, 96)
                features = tell(crops)
                tracks.append((features, raw if rng.random() < 0.1 else None))
                rec.record_stream(features)
            del raw, picture, crops, features
            while len(tracks) > 30 or tracks and rng.random() < 0.3:
                del tracks[rng.randrange(len(tracks))]


def window_sliding(rng, rec):
    """Long texts in pieces of 1024 words; each layer keeps the last 4096 words, cut and copied at every piece."""
    model = Transformer(12, 1024, 16, words=32000, kv_heads=4).bfloat16().eval()
    with torch.no_grad():
        for _ in range(6):
            rec.trace.step()
            caches = [[] for _ in model.layers]
            left = rng.randrange(3000, 14000)
            while left > 0:
                piece = min(1024, left)
                left -= piece
                model(words(2, piece), caches=caches, hidden=True)
                for c in caches:
                    c[:] = [t[:, :, -4096:].clone() for t in c]
            for _ in range(rng.randrange(4, 30)):
                model(words(2, 1), caches=caches, last=True).argmax(-1)


def nearest_neighbours(rng, rec):
    """Brute-force search: distances in blocks, the best of each kept and joined; the store grows in odd steps."""
    store, queries = [torch.empty(50021, 96)], 0
    with torch.no_grad():
        for _ in range(130):
            rec.trace.step()
            if rng.random() < 0.25:
                store.append(torch.empty(rng.randrange(900, 9000), 96))
            if len(store) > 6:
                store = [torch.cat(store)]
            queries = torch.empty(rng.randrange(1, 700), 96)
            best = []
            for part in store:
                for rows in part.split(16384):
                    best.append((queries @ rows.t() * -2 + rows.square().sum(1)).topk(10))
            values = torch.cat([b[0] for b in best], 1)
            found = values.topk(10)[1]
            torch.cat([b[1] for b in best], 1).gather(1, found)


def self_play(rng, rec):
    """A game that learns: many small batches through the network, positions kept in lists, then some training steps."""
    body = [nn.Conv2d(17, 96, 3, padding=1)]
    for _ in range(6):
        body += [nn.Conv2d(96, 96, 3, padding=1), nn.BatchNorm2d(96), nn.ReLU()]
    net = nn.Sequential(*body)
    policy, value = nn.Linear(96 * 361, 362), nn.Linear(96 * 361, 1)
    optimizer = torch.optim.SGD(nn.ModuleList([net, policy, value]).parameters(), lr=0.1, momentum=0.9, foreach=True)
    memory = collections.deque(maxlen=900)
    for _ in range(14):
        rec.trace.step()
        net.eval()
        with torch.no_grad():
            for _ in range(50):
                x = torch.empty(rng.randrange(1, 25), 17, 19, 19)
                y = net(x).flatten(1)
                memory.extend(zip(x.clone().unbind(), policy(y).softmax(-1).unbind()))
                value(y).tanh()
                del x, y
        net.train()
        for _ in range(6):
            x = torch.stack([rng.choice(memory)[0] for _ in range(64)])
            y = net(x).flatten(1)
            loss = F.cross_entropy(policy(y), words(64)) + value(y).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
