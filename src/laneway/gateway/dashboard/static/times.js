// Times in the local time zone; UTC on hover.
import { onShow } from "./page.js";

// By 24 hours, as the axes of charts: columns of times are short and of one width.
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

export function local(date) {
  const isToday = date.toDateString() === new Date().toDateString();
  return (isToday ? clock : day).format(date);
}

onShow((element) => {
  for (const time of element.querySelectorAll("time[datetime]")) {
    const date = new Date(time.dateTime);
    if (isNaN(date) || time.title) continue;
    time.title = time.textContent;
    time.textContent = local(date);
  }
});
