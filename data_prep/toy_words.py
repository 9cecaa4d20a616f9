"""The words of `toy_grammar.py`: tables of English and German, rows separated by line ends and `|`."""

# English[/plural] German gender plural[;weak form]
NOUNS = {
    "person": """
    man/men Mann m Männer | woman/women Frau f Frauen | child/children Kind n Kinder | girl Mädchen n Mädchen
    boy Junge m Jungen;Jungen | teacher Lehrer m Lehrer | teacher Lehrerin f Lehrerinnen | doctor Arzt m Ärzte
    neighbour Nachbar m Nachbarn;Nachbarn | friend Freundin f Freundinnen | guest Gast m Gäste
    student Student m Studenten;Studenten | baker Bäcker m Bäcker | aunt Tante f Tanten | uncle Onkel m Onkel
    colleague Kollege m Kollegen;Kollegen
""",
    "animal": """
    dog Hund m Hunde | cat Katze f Katzen | horse Pferd n Pferde | bird Vogel m Vögel | cow Kuh f Kühe
    bear Bär m Bären;Bären | mouse/mice Maus f Mäuse | pig Schwein n Schweine
""",
    "thing": """
    book Buch n Bücher | letter Brief m Briefe | lamp Lampe f Lampen | table Tisch m Tische | chair Stuhl m Stühle
    picture Bild n Bilder | clock Uhr f Uhren | car Auto n Autos | coat Mantel m Mäntel | shirt Hemd n Hemden
    box Kiste f Kisten | key Schlüssel m Schlüssel | bottle Flasche f Flaschen | glass Glas n Gläser
    bicycle Fahrrad n Fahrräder | bag Tasche f Taschen
""",
    "food": """
    apple Apfel m Äpfel | potato Kartoffel f Kartoffeln | egg Ei n Eier | cake Kuchen m Kuchen | soup Suppe f Suppen
    bread Brot n Brote | fish/fish Fisch m Fische | onion Zwiebel f Zwiebeln
""",
    "place": """
    garden Garten m Gärten | house Haus n Häuser | school Schule f Schulen | station Bahnhof m Bahnhöfe
    park Park m Parks | church Kirche f Kirchen | village Dorf n Dörfer | kitchen Küche f Küchen
    hotel Hotel n Hotels | town Stadt f Städte
""",
}  # fmt: skip
# what a compound begins with, and the class of the nouns that it goes with
FIRSTS = {
    "thing": "kitchen/Küchen garden/Garten winter/Winter glass/Glas wood/Holz music/Musik children's/Kinder",
    "food": "potato/Kartoffel onion/Zwiebel apple/Apfel fish/Fisch cheese/Käse",
    "place": "city/Stadt village/Dorf forest/Wald music/Musik holiday/Ferien",
}
# English German[/stem before endings]; equal English words are synonyms
ADJECTIVES = """
    old alt | new neu | big groß | small klein | red rot | black schwarz | green grün | beautiful schön
    expensive teuer/teur | cheap billig | cheap günstig | strange seltsam | strange merkwürdig | quiet ruhig
    dark dunkel/dunkl | dirty schmutzig | heavy schwer | famous berühmt
"""
# English[/past] German[/stem with du and er] participle[;s with sein] what it takes, as classes of nouns; `+` separates
# a prefix, `~` an English particle. dat: with the dative; give: receiver and thing; prepositions with their case
VERBS = """
    see/saw sehen/sieh gesehen any | find/found finden gefunden any | look~for suchen gesucht any
    buy/bought kaufen gekauft thing | sell/sold verkaufen verkauft thing | repair reparieren repariert thing
    carry tragen/träg getragen thing | read/read lesen/lies gelesen thing
    forget/forgot vergessen/vergiss vergessen thing | eat/ate essen/iss gegessen food | cook kochen gekocht food
    love lieben geliebt any | meet/met treffen/triff getroffen person | ask fragen gefragt person
    know/knew kennen gekannt person | paint malen gemalt any | draw/drew zeichnen gezeichnet any
    call an+rufen angerufen person | invite ein+laden/läd eingeladen person | pick~up ab+holen abgeholt person
    bring~along/brought~along mit+bringen mitgebracht thing
    throw~away/threw~away weg+werfen/wirf weggeworfen thing | try~out aus+probieren ausprobiert thing
    tidy~up auf+räumen aufgeräumt place | help helfen/hilf geholfen dat | thank danken gedankt dat
    follow folgen gefolgt;s dat | answer antworten geantwortet dat | listen~to zu+hören zugehört dat
    give/gave geben/gib gegeben give | show zeigen gezeigt give | lend/lent leihen geliehen give
    send/sent schicken geschickt give | wait~for warten gewartet auf-acc | think~of/thought~of denken gedacht an-acc
    dream~of träumen geträumt von-dat | talk~to sprechen/sprich gesprochen mit-dat
    laugh~at lachen gelacht über-acc | look~after auf+passen aufgepasst auf-acc
    sleep/slept schlafen/schläf geschlafen - | work arbeiten gearbeitet - | dance tanzen getanzt -
    arrive an+kommen angekommen;s - | wake~up/woke~up auf+wachen aufgewacht;s -
    come~back/came~back zurück+kommen zurückgekommen;s - | sing/sang singen gesungen -
"""
IRREGULAR = {"haben": "habe hast hat haben habt haben", "sein": "bin bist ist sind seid sind",
             "werden": "werde wirst wird werden werdet werden", "can": "kann kannst kann können könnt können",
             "must": "muss musst muss müssen müsst müssen", "may": "darf darfst darf dürfen dürft dürfen"}  # fmt: skip
# English subject and object; German nominative, accusative, dative; person of the verb (ich, du, er, wir, ihr, sie)
PRONOUNS = """
    I me ich mich mir 0 | you you du dich dir 1 | he him er ihn ihm 2 | she her sie sie ihr 2 | we us wir uns uns 3
    you you ihr euch euch 4 | you you Sie Sie Ihnen 5 | they them sie sie ihnen 5
"""
DETERMINERS = {"the": "der", "this": "dies", "a": "ein", "my": "mein", "his": "sein", "her": "ihr", "our": "unser"}
NUMBERS = "two/zwei three/drei four/vier five/fünf seven/sieben ten/zehn"
TIMES = {"present": "today/heute every~day/jeden~Tag in~the~evening/am~Abend now/jetzt often/oft",
         "past": "yesterday/gestern last~week/letzte~Woche this~morning/heute~Morgen on~Monday/am~Montag",
         "future": "tomorrow/morgen next~year/nächstes~Jahr soon/bald on~Sunday/am~Sonntag"}  # fmt: skip
PREPOSITIONS = "in/in near/neben behind/hinter in~front~of/vor"
LINKS = "because/weil although/obwohl while/während before/bevor"
