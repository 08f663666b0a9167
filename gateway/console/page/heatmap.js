// A picture under a spotlight: light where a word attends, dark elsewhere. Its colors stay what they are.
import { html, useEffect, useRef } from "./vendor/preact.mjs";

const DARKEST = 0.82;

function draw(canvas, image, heat, mode) {
  const scale = canvas.width / Math.max(image.naturalWidth, image.naturalHeight);
  const [width, height] = [image.naturalWidth * scale, image.naturalHeight * scale];
  canvas.height = Math.round(height);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0, width, height);
  if (!heat) return;
  const [rows, columns] = [heat.length, heat[0].length];
  const shade = document.createElement("canvas");
  [shade.width, shade.height] = [columns, rows];
  const pixels = shade.getContext("2d").createImageData(columns, rows);
  heat.flat().forEach((value, i) => {
    pixels.data[4 * i + 3] = Math.round(255 * DARKEST * (1 - value ** 1.5));
  });
  shade.getContext("2d").putImageData(pixels, 0, 0);
  // The model sees the middle square of a longer picture, all of it between bars, or all of it distorted.
  const side = (mode === "longest" ? Math.max : Math.min)(width, height);
  const [wide, high] = mode === "squash" ? [width, height] : [side, side];
  context.imageSmoothingQuality = "high";
  context.fillStyle = `rgba(0, 0, 0, ${DARKEST})`;
  context.beginPath();
  context.rect(0, 0, width, height);
  const seen = [(width - wide) / 2, (height - high) / 2, wide, high];
  context.rect(...seen);
  context.fill("evenodd");
  context.drawImage(shade, ...seen);
}

export function Spotlight({ url, heat, size, label, mode }) {
  const canvas = useRef(null);
  useEffect(() => {
    const image = new Image();
    let isCurrent = true;
    image.onload = () => isCurrent && draw(canvas.current, image, heat, mode);
    image.src = url;
    return () => {
      isCurrent = false;
    };
  }, [url, heat, mode]);
  return html`<canvas ref=${canvas} width=${size} height=${size} role="img" aria-label=${label}></canvas>`;
}
