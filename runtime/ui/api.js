// Questions to this server, with the key of this tab. Knows no answer's meaning.

const KEY = "axil-key";

export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) || "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

async function ask(path) {
  const headers = key.get() ? { Authorization: `Bearer ${key.get()}` } : {};
  const response = await fetch(new URL(`../${path}`, import.meta.url), { headers, cache: "no-store", signal: AbortSignal.timeout(10000) });
  if (response.ok) return response;
  let message = response.statusText;
  try {
    message = (await response.json()).error.message;
  } catch {
    // not one of our answers: a proxy's, say
  }
  throw new Refusal(response.status, message);
}

export const json = async (path) => (await ask(path)).json();
export const text = async (path) => (await ask(path)).text();
