"""How far colours are apart: for all eyes, and on their ground."""

# Relative luminances of two colours of the style, as WCAG has them.
CONTRAST = """((a, b) => {
  const c = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const light = name => {
    c.fillStyle = getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
    c.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...c.getImageData(0, 0, 1, 1).data].map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
  return (x + .05) / (y + .05);
})(%r, %r)"""

# What eyes see that lack one kind of cone, as Machado, Oliveira and Fernandes (2009) have it: linear light to linear light.
EYES = {
    "all cones": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[.152286, 1.052583, -.204868], [.114503, .786281, .099216], [-.003882, -.048116, 1.051998]],
    "deuteranopia": [[.367322, .860646, -.227968], [.280085, .672501, .047413], [-.011820, .042940, .968881]],
    "tritanopia": [[1.255528, -.076749, -.178779], [-.078411, .930809, .147602], [.004733, .691367, .303900]],
}


def seen(colour, eyes):
    """A colour `#rrggbb` as those eyes see it, in Oklab: distances there are those that people see."""
    light = [(lambda v: v / 12.92 if v <= .04045 else ((v + .055) / 1.055) ** 2.4)(int(colour[i:i + 2], 16) / 255) for i in (1, 3, 5)]
    r, g, b = [max(0, sum(m * v for m, v in zip(row, light))) for row in eyes]
    l, m, s = [(x * r + y * g + z * b) ** (1 / 3) for x, y, z in
               [(.4122214708, .5363325363, .0514459929), (.2119034982, .6806995451, .1073969566), (.0883024619, .2817188376, .6299787005)]]
    return (.2104542553 * l + .7936177850 * m - .0040720468 * s, 1.9779984951 * l - 2.4285922050 * m + .4505937099 * s,
            .0259040371 * l + .7827717662 * m - .8086757660 * s)
