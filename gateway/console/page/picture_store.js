// A view's own picture, kept in this browser, so that a reload does not lose it.
const STORE = "pictures";

function opened() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("fovea.console", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function use(mode, work) {
  const database = await opened();
  return new Promise((resolve, reject) => {
    const request = work(database.transaction(STORE, mode).objectStore(STORE));
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

// Browsers that store nothing, as in a private window, keep the picture until the next reload only.
export const keepPicture = (view, { name, blob }) => use("readwrite", (store) => store.put({ name, blob }, view)).catch(() => {});
export const keptPicture = (view) => use("readonly", (store) => store.get(view)).catch(() => undefined);
