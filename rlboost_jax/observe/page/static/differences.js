"use strict";
// What one text has that another has not, word by word.

const MOST_WORDS = 4000; // of a text; of a longer one the rest is compared as one word

// [["same" | "gone" | "new", text], …]. Myers 1986, "An O(ND) Difference Algorithm".
function differences(before, after) {
  const [a, b] = [words(before), words(after)];
  let begin = 0;
  while (begin < a.length && begin < b.length && a[begin] === b[begin]) begin += 1;
  let [endA, endB] = [a.length, b.length];
  while (endA > begin && endB > begin && a[endA - 1] === b[endB - 1]) [endA, endB] = [endA - 1, endB - 1];
  const middle = shortest(a.slice(begin, endA), b.slice(begin, endB));
  const parts = [];
  const put = (kind, word) => {
    const last = parts[parts.length - 1];
    if (last && last[0] === kind) last[1] += word;
    else parts.push([kind, word]);
  };
  for (const word of a.slice(0, begin)) put("same", word);
  for (const [kind, word] of middle) put(kind, word);
  for (const word of a.slice(endA)) put("same", word);
  return parts;
}

function words(text) {
  const found = text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) || [];
  return found.length <= MOST_WORDS ? found : [...found.slice(0, MOST_WORDS), found.slice(MOST_WORDS).join("")];
}

const MOST_EDITS = 400; // beyond that many, texts have too little in common to be compared

function shortest(a, b) {
  const most = Math.min(a.length + b.length, MOST_EDITS);
  const trace = [];
  let reach = new Map([[1, 0]]);
  for (let d = 0; d <= most; d += 1) {
    trace.push(new Map(reach));
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1));
      let x = down ? reach.get(k + 1) : reach.get(k - 1) + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x += 1;
      reach.set(k, x);
      if (x >= a.length && x - k >= b.length) return walked(trace, a, b);
    }
  }
  return [...a.map((word) => ["gone", word]), ...b.map((word) => ["new", word])];
}

function walked(trace, a, b) {
  const parts = [];
  let [x, y] = [a.length, b.length];
  for (let d = trace.length - 1; d >= 0; d -= 1) {
    const reach = trace[d];
    const k = x - y;
    const down = k === -d || (k !== d && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1));
    const beforeK = down ? k + 1 : k - 1;
    const beforeX = d === 0 ? 0 : reach.get(beforeK);
    const beforeY = beforeX - (d === 0 ? 0 : beforeK);
    while (x > beforeX && y > beforeY) {
      x -= 1;
      y -= 1;
      parts.push(["same", a[x]]);
    }
    if (d === 0) break;
    if (down) {
      y -= 1;
      parts.push(["new", b[y]]);
    } else {
      x -= 1;
      parts.push(["gone", a[x]]);
    }
  }
  return parts.reverse();
}
