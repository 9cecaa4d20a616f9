"""The words of the grammar: tables to be read, one word per line.

Nouns: English, German, gender (m f n), German plural; then `pl=` an irregular English plural, `weak=` the form of the
other singular cases (n-declension), `gen=` an irregular genitive, `sex=` whom the word means. Words that stand for
persons of either sex appear twice. Blanks inside a word are written `_`.

Verbs: infinitive (`an+rufen` is separable), stem of du/er where it changes, preterite, participle (both without the
separable prefix), auxiliary (h haben, s sein); English base, past, participle (`.` where regular); frame. In English
`look+for` is a verb with its preposition, `pick~up` one whose particle follows a pronoun (pick him up). `=` at the
start marks verbs without progressive form. Frames: `intr`; case and class of the object; preposition, case, class;
`ditr` with the class of the thing; `goal` for movement; `refl` before a frame makes the verb reflexive.
"""

NOUNS = {
    "person": """
        man Mann m Männer pl=men sex=m
        woman Frau f Frauen pl=women sex=f
        girl Mädchen n Mädchen sex=f
        boy Junge m Jungen weak=Jungen sex=m
        child Kind n Kinder pl=children
        teacher Lehrer m Lehrer sex=m
        teacher Lehrerin f Lehrerinnen sex=f
        friend Freund m Freunde sex=m
        friend Freundin f Freundinnen sex=f
        doctor Arzt m Ärzte sex=m
        doctor Ärztin f Ärztinnen sex=f
        neighbour Nachbar m Nachbarn weak=Nachbarn sex=m
        neighbour Nachbarin f Nachbarinnen sex=f
        student Student m Studenten weak=Studenten sex=m
        student Studentin f Studentinnen sex=f
        colleague Kollege m Kollegen weak=Kollegen sex=m
        colleague Kollegin f Kolleginnen sex=f
        baker Bäcker m Bäcker sex=m
        baker Bäckerin f Bäckerinnen sex=f
        painter Maler m Maler sex=m
        painter Malerin f Malerinnen sex=f
        singer Sänger m Sänger sex=m
        singer Sängerin f Sängerinnen sex=f
        customer Kunde m Kunden weak=Kunden sex=m
        customer Kundin f Kundinnen sex=f
    """,
    "kin": """
        mother Mutter f Mütter sex=f
        father Vater m Väter sex=m
        brother Bruder m Brüder sex=m
        sister Schwester f Schwestern sex=f
        aunt Tante f Tanten sex=f
        uncle Onkel m Onkel sex=m
        grandmother Großmutter f Großmütter sex=f
        son Sohn m Söhne sex=m
        daughter Tochter f Töchter sex=f
        mother-in-law Schwiegermutter f Schwiegermütter pl=mothers-in-law sex=f
        brother-in-law Schwager m Schwäger pl=brothers-in-law sex=m
    """,
    "animal": """
        dog Hund m Hunde
        cat Katze f Katzen
        horse Pferd n Pferde
        bird Vogel m Vögel
        cow Kuh f Kühe
        sheep Schaf n Schafe pl=sheep
        bear Bär m Bären weak=Bären
        hen Huhn n Hühner
    """,
    "food": """
        apple Apfel m Äpfel
        cake Kuchen m Kuchen
        egg Ei n Eier
        potato Kartoffel f Kartoffeln
        fish Fisch m Fische pl=fish
        tomato Tomate f Tomaten
        soup Suppe f Suppen
        roll Brötchen n Brötchen
    """,
    "text": """
        book Buch n Bücher
        newspaper Zeitung f Zeitungen
        postcard Postkarte f Postkarten
        poem Gedicht n Gedichte
        novel Roman m Romane
        e-mail E-Mail f E-Mails
    """,
    "thing": """
        bag Tasche f Taschen
        lamp Lampe f Lampen
        picture Bild n Bilder
        bottle Flasche f Flaschen
        knife Messer n Messer pl=knives
        spoon Löffel m Löffel
        umbrella Regenschirm m Regenschirme
        ring Ring m Ringe
        suitcase Koffer m Koffer
        gift Geschenk n Geschenke
        ball Ball m Bälle
        blanket Decke f Decken
    """,
    "clothes": """
        coat Mantel m Mäntel
        shirt Hemd n Hemden
        jacket Jacke f Jacken
        hat Hut m Hüte
        dress Kleid n Kleider
        T-shirt T-Shirt n T-Shirts gen=T-Shirts
    """,
    "furniture": """
        table Tisch m Tische
        chair Stuhl m Stühle
        bed Bett n Betten
        shelf Regal n Regale pl=shelves
        cupboard Schrank m Schränke
        bench Bank f Bänke
    """,
    "device": """
        clock Uhr f Uhren
        car Auto n Autos
        bicycle Fahrrad n Fahrräder
        radio Radio n Radios
        camera Kamera f Kameras
        machine Maschine f Maschinen
        computer Computer m Computer
    """,
    "opening": """
        door Tür f Türen
        window Fenster n Fenster
        box Kiste f Kisten
        gate Tor n Tore
    """,
    "place": """
        kitchen Küche f Küchen
        garden Garten m Gärten
        office Büro n Büros
        school Schule f Schulen
        museum Museum n Museen
        hotel Hotel n Hotels
        shop Laden m Läden
        library Bibliothek f Bibliotheken
        church Kirche f Kirchen
        park Park m Parks gen=Parks
        village Dorf n Dörfer
        city Stadt f Städte
        forest Wald m Wälder
        cellar Keller m Keller
        castle Schloss n Schlösser
        hospital Krankenhaus n Krankenhäuser
    """,
    "landmark": """
        tree Baum m Bäume
        house Haus n Häuser
        tower Turm m Türme
        bridge Brücke f Brücken
        well Brunnen m Brunnen
        fence Zaun m Zäune
    """,
}

#: heads of compounds that are no words of their own here
HEADS = """
    juice Saft m Säfte
    tart Torte f Torten
    address Adresse f Adressen
    course Kurs m Kurse
    password Passwort n Passwörter
    ticket Ticket n Tickets
    cable Kabel n Kabel
    collection Sammlung f Sammlungen
    account Konto n Konten
    map Plan m Pläne
    program Programm n Programme
    list Liste f Listen
    player Player m Player
    department Abteilung f Abteilungen
    counter Schalter m Schalter
    station Station f Stationen
"""

#: class of the compound: (first parts `english/German`, heads); every first part goes with every head
CLOSED_COMPOUNDS = {
    "thing": (
        "kitchen/Küchen garden/Garten children's/Kinder school/Schul winter/Winter summer/Sommer office/Büro "
        "travel/Reise family/Familien work/Arbeits emergency/Not night/Nacht",
        "bag lamp table chair door window book clock",
    ),
    "food": ("apple/Apfel cherry/Kirsch plum/Pflaumen orange/Orangen strawberry/Erdbeer lemon/Zitronen", "cake tart"),
    "drink": ("apple/Apfel cherry/Kirsch plum/Pflaumen orange/Orangen tomato/Tomaten carrot/Karotten", "juice"),
    "landmark": ("apple/Apfel cherry/Kirsch plum/Pflaumen nut/Nuss orange/Orangen", "tree"),
}
#: first part, and the heads that go with it
HYPHENATED_COMPOUNDS = """
    e-mail/E-Mail address list account program password
    online/Online course account newspaper program ticket
    Wi-Fi/WLAN password cable
    subway/U-Bahn ticket map station
    USB/USB cable
    CD/CD collection player
    DVD/DVD collection player
    IT/IT course department
    check-in/Check-in counter
    pop-up/Pop-up window
    yoga/Yoga course
"""

#: English word: its meanings, each `German gender plural` and what tells it (English and German without the subject)
AMBIGUOUS = {
    "bank": (("Bank f Banken", "need money", "Geld brauchen"), ("Ufer n Ufer", "love rivers", "Flüsse lieben")),
    "bat": (("Fledermaus f Fledermäuse", "love animals", "Tiere lieben"),
            ("Schläger m Schläger", "play baseball", "Baseball spielen")),
    "letter": (("Brief m Briefe", "collect stamps", "Briefmarken sammeln"),
               ("Buchstabe m Buchstaben weak=Buchstaben gen=Buchstabens", "learn languages", "Sprachen lernen")),
    "key": (("Schlüssel m Schlüssel", "sell houses", "Häuser verkaufen"),
            ("Taste f Tasten", "play music", "Musik spielen")),
    "plant": (("Pflanze f Pflanzen", "love flowers", "Blumen lieben"),
              ("Fabrik f Fabriken", "sell machines", "Maschinen verkaufen")),
    "seal": (("Robbe f Robben", "photograph animals", "Tiere fotografieren"),
             ("Siegel n Siegel", "write contracts", "Verträge schreiben")),
    "match": (("Streichholz n Streichhölzer", "need fire", "Feuer brauchen"),
              ("Spiel n Spiele", "play football", "Fußball spielen")),
}  # fmt: skip

VERBS = """
    kaufen - kaufte gekauft h buy bought bought acc goods
    lesen lies las gelesen h read read read acc text
    schreiben - schrieb geschrieben h write wrote written acc text
    öffnen - öffnete geöffnet h open . . acc opening
    auf+machen - machte gemacht h open . . acc opening
    schließen - schloss geschlossen h close . . acc opening
    zu+machen - machte gemacht h close . . acc opening
    ab+schließen - schloss geschlossen h lock . . acc opening
    sehen sieh sah gesehen h =see saw seen acc any
    suchen - suchte gesucht h look+for . . acc any
    finden - fand gefunden h find found found acc any
    besuchen - besuchte besucht h visit . . acc people
    kennen - kannte gekannt h =know knew known acc people
    lieben - liebte geliebt h =love . . acc people
    malen - malte gemalt h paint . . acc any
    zeichnen - zeichnete gezeichnet h draw drew drawn acc any
    essen iss aß gegessen h eat ate eaten acc food
    kochen - kochte gekocht h cook . . acc dish
    trinken - trank getrunken h drink drank drunk acc drink
    reparieren - reparierte repariert h repair . . acc device
    bauen - baute gebaut h build built built acc built
    putzen - putzte geputzt h clean . . acc built
    tragen träg trug getragen h carry . . acc goods
    brauchen - brauchte gebraucht h =need . . acc goods
    verkaufen - verkaufte verkauft h sell sold sold acc goods
    verlieren - verlor verloren h lose lost lost acc goods
    vergessen vergiss vergaß vergessen h forget forgot forgotten acc goods
    treffen triff traf getroffen h meet met met acc people
    hören - hörte gehört h =hear heard heard acc living
    fotografieren - fotografierte fotografiert h photograph . . acc any
    waschen wäsch wusch gewaschen h wash . . acc clothes
    fragen - fragte gefragt h ask . . acc people
    an+rufen - rief gerufen h call . . acc people
    ein+laden läd lud geladen h invite . . acc people
    ab+holen - holte geholt h pick~up . . acc living
    mit+bringen - brachte gebracht h bring~along brought brought acc goods
    an+ziehen - zog gezogen h put~on put put acc clothes
    aus+probieren - probierte probiert h try~out . . acc device
    auf+räumen - räumte geräumt h tidy~up . . acc place
    vor+lesen lies las gelesen h read~aloud read read acc text
    weg+werfen wirf warf geworfen h throw~away threw thrown acc goods
    an+sehen sieh sah gesehen h look+at . . acc any
    an+schauen - schaute geschaut h look+at . . acc any
    aus+leihen - lieh geliehen h borrow . . acc goods
    helfen hilf half geholfen h help . . dat people
    danken - dankte gedankt h thank . . dat people
    folgen - folgte gefolgt s follow . . dat living
    antworten - antwortete geantwortet h answer . . dat people
    gratulieren - gratulierte gratuliert h congratulate . . dat people
    vertrauen - vertraute vertraut h =trust . . dat people
    zu+hören - hörte gehört h listen+to . . dat people
    warten - wartete gewartet h wait+for . . auf acc any
    denken - dachte gedacht h think+of thought thought an acc any
    träumen - träumte geträumt h dream+of . . von dat any
    sprechen sprich sprach gesprochen h talk+to . . mit dat people
    lachen - lachte gelacht h laugh+at . . über acc people
    auf+passen - passte gepasst h look+after . . auf acc living
    freuen - freute gefreut h look+forward+to . . refl auf acc text
    erinnern - erinnerte erinnert h =remember . . refl an acc any
    geben gib gab gegeben h give gave given ditr goods
    schenken - schenkte geschenkt h give gave given ditr goods
    zeigen - zeigte gezeigt h show showed shown ditr any
    schicken - schickte geschickt h send sent sent ditr text
    leihen - lieh geliehen h lend lent lent ditr goods
    schlafen schläf schlief geschlafen h sleep slept slept intr
    arbeiten - arbeitete gearbeitet h work . . intr
    tanzen - tanzte getanzt h dance . . intr
    lachen - lachte gelacht h laugh . . intr
    weinen - weinte geweint h cry . . intr
    singen - sang gesungen h sing sang sung intr
    lernen - lernte gelernt h study . . intr
    auf+stehen - stand gestanden s get+up got got intr
    ein+schlafen schläf schlief geschlafen s fall+asleep fell fallen intr
    auf+wachen - wachte gewacht s wake+up woke woken intr
    fern+sehen sieh sah gesehen h watch+TV . . intr
    an+kommen - kam gekommen s arrive . . intr
    zurück+kommen - kam gekommen s come+back came come intr
    gehen - ging gegangen s go went gone goal
    laufen läuf lief gelaufen s run ran run goal
    fahren fähr fuhr gefahren s drive drove driven goal
"""

#: verbs that are found by cue or template only
OTHER_VERBS = """
    sammeln - sammelte gesammelt h collect . . cue
    spielen - spielte gespielt h play . . cue
    lernen - lernte gelernt h learn . . cue
    sagen - sagte gesagt h say said said that
    glauben - glaubte geglaubt h =believe . . that
    hoffen - hoffte gehofft h =hope . . that
    denken - dachte gedacht h think thought thought that
"""

#: English, stem before endings (`/` uninflected form where that differs), classes; equal English words are synonyms
ADJECTIVES = """
    old alt people,animal,thing,text,clothes,furniture,device,place,landmark,opening
    new neu thing,text,clothes,furniture,device,opening,place
    big groß animal,thing,furniture,device,place,landmark,opening,food
    small klein people,animal,thing,furniture,device,place,landmark,opening,food
    beautiful schön people,animal,thing,text,clothes,furniture,place,landmark
    red rot thing,clothes,furniture,device,opening,food
    blue blau thing,clothes,furniture,device,opening
    green grün thing,clothes,furniture,device,opening,food
    blue-green blaugrün thing,clothes,furniture,device,opening
    black schwarz thing,clothes,furniture,device,animal,opening
    white weiß thing,clothes,furniture,device,animal,opening
    expensive teur/teuer thing,text,clothes,furniture,device,food,drink
    cheap billig thing,text,clothes,furniture,device,food,drink
    cheap günstig thing,text,clothes,furniture,device,food,drink
    heavy schwer thing,furniture,device
    dark dunkl/dunkel place,thing,clothes,furniture
    young jung people,animal
    friendly freundlich people,animal
    nice nett people
    clever klug people,animal
    strange seltsam people,animal,text,thing,device,place,landmark
    strange merkwürdig people,animal,text,thing,device,place,landmark
    quiet ruhig people,animal,place
    famous berühmt people,text,place,landmark
    well-known bekannt people,text,place,landmark
    old-fashioned altmodisch clothes,furniture,device,thing
    curious neugierig people,animal
    tired müd/müde people,animal
    sick krank people,animal
    happy glücklich people,animal
    sad traurig people,animal,text
    broken kaputt device,furniture,thing
    fresh frisch food,drink
    sweet süß food,drink
    cold kalt drink,food,place
    dirty schmutzig clothes,furniture,device,thing,place,opening
    five-year-old fünfjährig animal,device
    long lang text
    boring langweilig text,place
"""

CLASSES = {
    "people": ["person", "kin"],
    "living": ["person", "kin", "animal"],
    "goods": ["thing", "text", "clothes", "furniture", "device"],
    "any": ["person", "kin", "animal", "thing", "text", "clothes", "furniture", "device", "landmark"],
    "dish": ["food"],
    "built": ["furniture", "device", "opening"],
}
NAMES = "Anna/f Peter/m Maria/f Paul/m Lena/f Jonas/m Sophie/f Felix/m Emma/f Max/m"
SURNAMES = "Schmidt Weber Fischer Wagner Becker Hoffmann Koch Richter"
CITIES = "Berlin/Berlin Hamburg/Hamburg Munich/München Vienna/Wien Cologne/Köln Zurich/Zürich Nuremberg/Nürnberg"
NUMBERS = "two/zwei three/drei four/vier five/fünf six/sechs seven/sieben eight/acht nine/neun ten/zehn eleven/elf"
WEEKDAYS = "Monday/Montag Tuesday/Dienstag Wednesday/Mittwoch Thursday/Donnerstag Friday/Freitag Saturday/Samstag"
#: English, German; which tenses they go with
TIMES = {
    "present": ["today/heute", "every day/jeden Tag", "every morning/jeden Morgen", "in the evening/am Abend",
                "now/jetzt"],
    "past": ["yesterday/gestern", "last week/letzte Woche", "last year/letztes Jahr", "this morning/heute Morgen"],
    "future": ["tomorrow/morgen", "next week/nächste Woche", "tonight/heute Abend", "soon/bald"],
}  # fmt: skip
#: before the verb in English
FREQUENCIES = "often/oft always/immer sometimes/manchmal"
