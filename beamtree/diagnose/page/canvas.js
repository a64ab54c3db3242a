// Drawing on a canvas: text that fits, and stripes.

function fit(pen, text, width) {
  text = clean(text);
  if (pen.measureText(text).width <= width) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low > 2 ? `${text.slice(0, low)}…` : "";
}

function fitEnd(pen, text, width) { // of a category path, the last steps that fit
  const steps = text.split(" / ");
  for (let n = 0; n < steps.length - 1; n++) {
    const short = clean(steps.slice(n).join(" / "));
    if (pen.measureText(short).width <= width) return short;
  }
  return fit(pen, steps[steps.length - 1], width);
}

let hatching = {};
function hatch(pen) { // stripes, so that pruned nodes are recognised without colours
  if (hatching.colour !== palette.hatch) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const brush = tile.getContext("2d");
    brush.strokeStyle = palette.hatch;
    brush.lineWidth = 1.2;
    for (const shift of [-6, 0, 6]) { brush.moveTo(shift, 6); brush.lineTo(shift + 6, 0); }
    brush.stroke();
    hatching = { colour: palette.hatch, tile };
  }
  return pen.createPattern(hatching.tile, "repeat");
}
