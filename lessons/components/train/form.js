// A run's settings: sent as they are changed, by name; locked while a run is on.
(() => {
  const L = window.Lessons;
  const send = (name, value) => L.send("train", "set", { [name]: value });

  const field = (item) => {
    const id = `train-${item.name}`;
    return L.el("div.field", {},
      L.el("label", { for: id, text: item.label }),
      L.el("input", {
        id, type: "text", inputmode: "decimal", autocomplete: "off", value: item.value, title: item.info,
        data: { field: item.name, focus: item.name }, onchange: (event) => send(item.name, event.target.value),
      }));
  };

  const presets = (form) => {
    const trainers = [...new Set(form.presets.map((row) => row.trainer))];
    const option = (row) => L.el("option", {
      value: row.name, text: `${row.name}${row.version ? ` · ${row.version}` : ""}`, selected: row.name === form.preset,
    });
    return L.el("div.field.preset", {},
      L.el("label", { for: "train-preset", text: L.label("preset") }),
      L.el("select", { id: "train-preset", data: { field: "preset", focus: "preset" }, onchange: (event) => send("preset", event.target.value) },
        ...trainers.map((trainer) => L.el("optgroup", { label: trainer }, ...form.presets.filter((row) => row.trainer === trainer).map(option)))));
  };

  L.trainForm = (form, locked) =>
    L.el("form.settings", { onsubmit: (event) => event.preventDefault() },
      L.el("fieldset", { disabled: locked, "aria-label": L.label("train_form") },
        L.el("div.fields", {}, presets(form), ...form.fields.map(field)),
        L.el("p.note", { text: locked ? `${form.rest} ${L.label("train_form_locked")}` : form.rest })));
})();
