// The one-time login is in the fragment, which no request has. It is taken out of the address at
// once, so that it is in no history, and sent.
const code = decodeURIComponent(location.hash.slice(1));
if (code) {
  history.replaceState(null, '', location.pathname + location.search);
  const form = document.getElementById('login');
  form.elements.code.value = code;
  form.submit();
}
