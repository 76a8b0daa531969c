// Large pages hold their data deflated (RFC 1951) and in base64; small ones as plain JSON. This unpacks the former, at
// once and in any browser: the browsers' own way answers later, when the page is already there.
"use strict";
const LENGTH_BASE = [3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258];
const LENGTH_BITS = LENGTH_BASE.map((_, at) => (at < 8 || at === 28 ? 0 : (at >> 2) - 1));
const DISTANCE_BITS = Array.from({ length: 30 }, (_, at) => (at < 4 ? 0 : (at >> 1) - 1));
const DISTANCE_BASE = DISTANCE_BITS.map((_, at) => 1 + DISTANCE_BITS.slice(0, at).reduce((sum, bits) => sum + 2 ** bits, 0));
const LENGTHS_ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

// From the lengths of the codes, what any next `bits` bits begin with: symbol * 16 + length of its code.
function codeTable(lengths) {
  const bits = Math.max(1, ...lengths), table = new Uint16Array(1 << bits);
  let code = 0;
  for (let length = 1; length <= bits; length++, code <<= 1)
    for (let symbol = 0; symbol < lengths.length; symbol++) {
      if (lengths[symbol] !== length) continue;
      let turned = 0;
      for (let bit = 0; bit < length; bit++) turned |= ((code >> bit) & 1) << (length - 1 - bit);
      for (let at = turned; at < table.length; at += 1 << length) table[at] = symbol * 16 + length;
      code++;
    }
  return { bits, table };
}

function inflate(input, size) {
  const out = new Uint8Array(size);
  let at = 0, end = 0, bits = 0, held = 0;
  const need = (count) => {
    for (; held < count; held += 8) bits |= input[at++] << held;
  };
  const take = (count) => {
    need(count);
    const value = bits & ((1 << count) - 1);
    bits >>>= count;
    held -= count;
    return value;
  };
  const symbol = (codes) => {
    need(codes.bits);
    const found = codes.table[bits & ((1 << codes.bits) - 1)];
    if (!found) throw new Error("the page's data is damaged");
    bits >>>= found & 15;
    held -= found & 15;
    return found >> 4;
  };
  const fixed = [codeTable(Array.from({ length: 288 }, (_, at) => (at < 144 ? 8 : at < 256 ? 9 : at < 280 ? 7 : 8))), codeTable(Array(30).fill(5))];
  const readTables = () => {
    const literals = take(5) + 257, distances = take(5) + 1, count = take(4) + 4, first = Array(19).fill(0);
    for (let each = 0; each < count; each++) first[LENGTHS_ORDER[each]] = take(3);
    const codes = codeTable(first), lengths = [];
    while (lengths.length < literals + distances) {
      const found = symbol(codes);
      if (found < 16) lengths.push(found);
      else {
        const value = found === 16 ? lengths[lengths.length - 1] : 0, times = found === 16 ? take(2) + 3 : found === 17 ? take(3) + 3 : take(7) + 11;
        for (let each = 0; each < times; each++) lengths.push(value);
      }
    }
    return [codeTable(lengths.slice(0, literals)), codeTable(lengths.slice(literals))];
  };
  for (let last = 0; !last; ) {
    last = take(1);
    const kind = take(2);
    if (kind === 0) {
      take(held & 7);
      const count = take(16);
      take(16);
      for (let each = 0; each < count; each++) out[end++] = take(8);
      continue;
    }
    const [literals, distances] = kind === 1 ? fixed : readTables();
    for (let found = symbol(literals); found !== 256; found = symbol(literals)) {
      if (found < 256) {
        out[end++] = found;
        continue;
      }
      const length = LENGTH_BASE[found - 257] + take(LENGTH_BITS[found - 257]), code = symbol(distances);
      for (let from = end - DISTANCE_BASE[code] - take(DISTANCE_BITS[code]), to = end + length; end < to; ) out[end++] = out[from++];
    }
  }
  if (end !== size) throw new Error("the page's data is damaged");
  return out;
}

function readData(block) {
  if (block.type === "application/json") return JSON.parse(block.textContent);
  const packed = Uint8Array.from(atob(block.textContent.trim()), (letter) => letter.charCodeAt(0));
  return JSON.parse(new TextDecoder().decode(inflate(packed, Number(block.dataset.size))));
}
