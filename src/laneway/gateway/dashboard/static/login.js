// The one-time login is in the fragment: no request has it, and taken out, no history.
const code = decodeURIComponent(location.hash.slice(1));
if (code) {
  history.replaceState(null, '', location.pathname + location.search);
  const form = document.getElementById('login');
  if (form) {
    form.elements.code.value = code;
    form.submit();
  }
}
