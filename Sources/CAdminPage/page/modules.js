// Runs the modules of xterm.js, which are made for CommonJS: each has a function that fills `exports` when it is first
// required.

/** Returns what the module `name` of `modules` exports. */
export function load(modules, name, loaded = new Map()) {
  const known = loaded.get(name);
  if (known) return known.exports;
  const module = { exports: {} };
  loaded.set(name, module);
  const require = (path) => load(modules, resolve(name, path), loaded);
  modules[name].call(module.exports, module.exports, require, module);
  return module.exports;
}

/** "../Buffer" in "renderer/Renderer" is "Buffer". */
function resolve(from, path) {
  const words = from.split("/").slice(0, -1);
  for (const word of path.split("/")) {
    if (word === "..") words.pop();
    else if (word !== ".") words.push(word);
  }
  return words.join("/");
}
