"""Programs that are no networks, and programs that share a device. Those that take `trace` write it themselves."""
import collections
import math


def tables_joined(rng, trace):
    """Queries over tables of columns: filters, joins by hashing, sorts and groups, on two streams, kept a while."""
    rows = [int(10 ** rng.uniform(4.5, 6.3)) for _ in range(7)]
    tables = [[trace.alloc(n * rng.choice((1, 4, 4, 8, 8, 16))) for _ in range(rng.randrange(3, 12))] for n in rows]
    kept = collections.deque()
    for query in range(260):
        trace.step()
        stream = query % 2
        take = lambda size: trace.alloc(max(1, int(size)), stream)
        held, n = [], rng.choice(rows)
        for _ in range(rng.randrange(2, 7)):
            kind = rng.choice("fjsg")
            columns = rng.randrange(1, 7)
            if kind == "f":
                mask, index = take(n), take(4 * n)
                n = max(1, int(n * rng.betavariate(1.2, 2.0)))
                new = [take(n * rng.choice((4, 8))) for _ in range(columns)] + [take((n + 7) // 8)]
                trace.free(mask)
                trace.free(index)
            elif kind == "j":
                other = rng.choice(rows)
                table = take(8 * 2 ** math.ceil(math.log2(other * 1.6)))
                count = take(8)
                pairs = max(1, int(min(n, other) * rng.uniform(0.2, 2.2)))
                left, right = take(4 * pairs), take(4 * pairs)
                trace.free(count)
                trace.free(table)
                new = [take(pairs * rng.choice((4, 8))) for _ in range(columns)]
                trace.free(left)
                trace.free(right)
                n = pairs
            elif kind == "s":
                keys, order, scratch = take(8 * n), take(4 * n), take(12 * n + 70001)
                trace.free(scratch)
                new = [take(8 * n) for _ in range(columns)]
                trace.free(keys)
                trace.free(order)
            else:
                groups = max(1, int(n ** rng.uniform(0.3, 0.9)))
                table = take(16 * 2 ** math.ceil(math.log2(n + 1)))
                new = [take(8 * groups) for _ in range(columns)]
                trace.free(table)
                n = groups
            for block in held:
                trace.free(block)
            held = new
        kept.append(held)
        while len(kept) > 12:
            at = rng.randrange(len(kept))
            for block in kept[at]:
                trace.free(block)
            del kept[at]
    for table in tables:
        for block in table:
            trace.free(block)


def solver_on_grids(rng, trace):
    """A multigrid solver, 150 MiB: fixed grids, temporaries of each level, conjugate gradients around it."""
    n = 144
    sizes = []
    while n > 8:
        sizes.append(8 * (n + 2) ** 3)
        n //= 2
    for s in sizes:
        [trace.alloc(s) for _ in range(2)]

    def cycle(level):
        residual = trace.alloc(sizes[level])
        temporary = trace.alloc(sizes[level])
        if level + 1 < len(sizes):
            coarse = trace.alloc(sizes[level + 1])
            trace.free(temporary)
            cycle(level + 1)
            back = trace.alloc(sizes[level])
            trace.free(coarse)
            trace.free(back)
        else:
            trace.free(temporary)
        trace.free(trace.alloc(max(512, sizes[level] // 4096)))
        trace.free(residual)

    for _ in range(60):
        trace.step()
        p = trace.alloc(sizes[0])
        for _ in range(rng.randrange(10, 22)):
            q = trace.alloc(sizes[0])
            trace.free(trace.alloc(8))
            cycle(0)
            trace.free(p)
            p = q
        trace.free(p)


def frontiers(rng, trace):
    """Graph searches: frontiers that grow and shrink, vectors that double when they are full, marks and queues."""
    vertices, edges = 700_001, 11_000_003
    trace.alloc(8 * vertices), trace.alloc(4 * edges)
    for _ in range(240):
        trace.step()
        level, seen = trace.alloc(4 * vertices), trace.alloc((vertices + 31) // 32 * 4)
        frontier, size, peak = trace.alloc(4), 1, rng.uniform(0.1, 0.6) * vertices
        room, paths = 1024, trace.alloc(1024 * 12)
        for depth in range(rng.randrange(8, 24)):
            degrees, sums = trace.alloc(4 * size), trace.alloc(4 * size + 767)
            grows = size < peak and depth < 6
            size = max(1, int(size * (rng.uniform(3, 40) if grows else rng.uniform(0.05, 0.9))))
            size = min(size, int(peak))
            found = trace.alloc(int(4 * size * rng.uniform(1.0, 2.5)))
            trace.free(degrees), trace.free(sums)
            unique = trace.alloc(4 * size)
            trace.free(found), trace.free(frontier)
            frontier = unique
            while room < size:
                room *= 2
                more = trace.alloc(room * 12)
                trace.free(paths)
                paths = more
        for block in (level, seen, frontier, paths):
            trace.free(block)


def atoms(rng, trace):
    """Molecular dynamics, 58 MiB: lists of neighbours of ever new length, forces, a grid for long ranges."""
    count = 121_611
    fixed = [trace.alloc(count * b) for b in (12, 12, 12, 4, 4, 24)]
    fixed += [trace.alloc(8 * 64 ** 3), trace.alloc(16 * 64 * 64 * 33)]
    room = int(count * 75 * 1.1)
    near = trace.alloc(4 * room)
    for i in range(2600):
        if i % 12 == 0:
            trace.step()
            cells, order, scratch = trace.alloc(4 * 21 ** 3), trace.alloc(8 * count), trace.alloc(8 * count + 30001)
            trace.free(scratch)
            need = int(count * rng.gauss(75, 3))
            if need > room or need < room * 0.85:
                room = int(need * 1.08)
                trace.free(near)
                near = trace.alloc(4 * room)
            trace.free(cells), trace.free(order)
        forces, parts = trace.alloc(12 * count), trace.alloc(4 * rng.randrange(300, 3000))
        if i % 2 == 0:
            grid = trace.alloc(16 * 64 * 64 * 33)
            trace.free(grid)
        trace.free(parts), trace.free(forces)
    for block in [*fixed, near]:
        trace.free(block)


def light_paths(rng, trace):
    """Paths of light in waves: rays die, queues are packed anew at each bounce; scenes change, textures come and go."""
    textures = collections.OrderedDict()
    for scene in range(70):
        trace.step()
        mesh = [trace.alloc(int(10 ** rng.uniform(5.5, 7.6))) for _ in range(rng.randrange(3, 14))]
        tree = trace.alloc(int(10 ** rng.uniform(6.0, 7.5)))
        scratch = trace.alloc(trace.bytes_of[tree] * 3 // 2)
        packed = trace.alloc(int(trace.bytes_of[tree] * rng.uniform(0.5, 0.7)))
        trace.free(scratch), trace.free(tree)
        for _ in range(rng.randrange(2, 10)):
            name = int(rng.paretovariate(0.7)) % 90
            if name not in textures:
                side = 2 ** rng.randrange(8, 12)
                textures[name] = trace.alloc(side * side * 4 * 4 // 3)
            textures.move_to_end(name)
            while len(textures) > 30:
                trace.free(textures.popitem(last=False)[1])
        width, height = rng.choice(((1280, 720), (1920, 1080), (1000, 1000)))
        film = trace.alloc(16 * width * height)
        for _ in range(rng.randrange(2, 6)):
            rays = width * height
            queue = trace.alloc(48 * rays)
            for _ in range(rng.randrange(3, 9)):
                hits, shadow = trace.alloc(20 * rays), trace.alloc(32 * rays)
                rays = max(1, int(rays * rng.uniform(0.4, 0.9)))
                kinds = [trace.alloc(max(4, int(4 * rays * rng.random()))) for _ in range(6)]
                new = trace.alloc(48 * rays)
                trace.free(queue), trace.free(hits), trace.free(shadow)
                for block in kinds:
                    trace.free(block)
                queue = new
            trace.free(queue)
        for block in [*mesh, packed, film]:
            trace.free(block)


def films_coded(rng, trace):
    """Films turned from one size into others, 100 MiB: reference pictures in rings, three streams, odd strides."""
    live = []
    for i in range(9000):
        if i % 900 == 0:
            trace.step()
        if len(live) < 4 and rng.random() < 0.02 or not live:
            w, h = rng.choice(((1920, 1080), (1280, 720), (854, 480), (3840, 2160), (720, 576)))
            outs = rng.sample(((1280, 720), (854, 480), (640, 360), (426, 240)), rng.randrange(1, 4))
            live.append([w, h, outs, collections.deque(), rng.randrange(60, 500), rng.randrange(3, 7), len(live) % 3])
        film = rng.choice(live)
        w, h, outs, ring, left, references, stream = film
        size = (w + 127) // 128 * 128 * h * 3 // 2
        coded = trace.alloc(max(300, int(size / rng.uniform(20, 400))), stream)
        ring.append(trace.alloc(size, stream))
        trace.free(coded)
        for a, b in outs:
            small = trace.alloc((a + 127) // 128 * 128 * b * 3 // 2, stream)
            bits = trace.alloc(int(a * b * 0.4) + 4096, stream)
            trace.free(small), trace.free(bits)
        if len(ring) > references:
            trace.free(ring.popleft())
        film[4] -= 1
        if film[4] == 0:
            for block in ring:
                trace.free(block)
            live.remove(film)


def interleaved(rng, trace, parts):
    """Several recorded programs on one device, each as (trace, its first stream)."""
    ids, at = {}, [0] * len(parts)
    while True:
        left = [len(p.events) - a for (p, _), a in zip(parts, at)]
        if not any(left):
            return
        which, = rng.choices(range(len(parts)), left)
        program, first = parts[which]
        for _ in range(rng.randrange(1, 400)):
            if at[which] == len(program.events):
                break
            e = program.events[at[which]]
            at[which] += 1
            if len(e) == 3:
                ids[which, e[0]] = trace.alloc(e[1], first + e[2])
            else:
                trace.free(ids.pop((which, e[0])))


def recorded(program):
    import random
    from record import record
    return record(program, random.Random(program.__name__))


def two_trainings(rng, trace):
    """Two small networks learn at once, each on a stream of its own."""
    import small
    interleaved(rng, trace, [(recorded(small.learning_to_learn), 0), (recorded(small.sweep_of_models), 1)])


def training_beside_serving(rng, trace):
    """A training and a server of words on one device, on streams of their own."""
    import serve
    import train
    interleaved(rng, trace, [(recorded(train.convnet_progressive), 0), (recorded(serve.tokens_small), 1)])


def two_on_one_stream(rng, trace):
    """A speech server and a sound model in training, both on the default stream."""
    import serve
    import train
    interleaved(rng, trace, [(recorded(serve.speech), 0), (recorded(train.audio_masked), 0)])
