/** Colours of the overlays; the same in the dark and the light theme. */

type Colour = readonly [number, number, number];

/** Colours of the foreground classes, distinguishable with colour blindness. */
const CLASS_COLOURS: readonly Colour[] = [
  [86, 180, 255],
  [240, 121, 190],
  [120, 220, 150],
  [190, 150, 255],
];
export const ANNOTATOR = "rgb(255 176 66)";

/** Colour map from 0 to 1: dark to bright, readable without colour. */
const RAMPS = {
  mean: [[38, 70, 150], [35, 130, 165], [60, 180, 140], [160, 215, 90], [250, 235, 90]],
  gamma: [[70, 20, 110], [150, 40, 110], [220, 70, 70], [250, 140, 40], [252, 230, 130]],
} as const satisfies Record<string, readonly Colour[]>;
export type Ramp = keyof typeof RAMPS;

export function classColour(label: number, alpha = 1): string {
  return `rgb(${CLASS_COLOURS[(label - 1) % CLASS_COLOURS.length]!.join(" ")} / ${alpha})`;
}

/** Return 256 RGBA colours: transparent at 0, and opaque enough to read from a fifth of the range. */
export function rampTable(ramp: Ramp): Uint8ClampedArray {
  const table = new Uint8ClampedArray(256 * 4);
  for (let value = 0; value < 256; value++) {
    const [red, green, blue] = rampColour(ramp, value / 255);
    table.set([red, green, blue, 200 * Math.min(1, value / 50)], 4 * value);
  }
  return table;
}

export function rampColour(ramp: Ramp, value: number): Colour {
  const stops: readonly Colour[] = RAMPS[ramp];
  const place = Math.min(value, 0.9999) * (stops.length - 1);
  const [below, above] = [stops[Math.floor(place)]!, stops[Math.floor(place) + 1]!];
  const mix = (n: 0 | 1 | 2) => below[n] + (above[n] - below[n]) * (place % 1);
  return [mix(0), mix(1), mix(2)];
}
